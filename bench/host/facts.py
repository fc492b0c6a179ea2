"""All facts of the host in one plain dict, ready for JSON. What isn't known is None."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from bench.ground.filesystems import coldness, describe
from bench.host.accelerators import accelerators, device_nodes, drivers
from bench.host.blocks import block_device
from bench.host.cpu import cpu_facts
from bench.host.machine import container, system, virtual
from bench.host.meminfo import memory_facts, process_limits
from bench.measuring.cores import effective_cores, quota_cores
from loaders.system.files import Root, word
from loaders.system.memory import available_bytes, limits
from loaders.system.mounts import Mount, mount_of
from loaders.system.space import space

# Asked for by name, not imported: `coldload host` must not wait for torch.
PACKAGES = (
    "coldload",
    "torch",
    "torch-npu",
    "numpy",
    "safetensors",
    "fastsafetensors",
    "runai-model-streamer",
    "instanttensor",
    "tensorizer",
    "huggingface-hub",
    "xxhash",
    "pytest",
    "pytest-benchmark",
    "transformers",
    "vllm",
    "vllm-ascend",
    "sglang",
)

_PRIVATE = frozenset(
    {
        "addr",
        "clientaddr",
        "mountaddr",
        "mon_addr",
        "ip",
        "srcaddr",
        "username",
        "user",
        "domain",
        "name",
        "secret",
        "key",
        "password",
        "credentials",
    }
)
# IPv4, and IPv6 with at least two colons; device paths have neither.
_ADDRESS = re.compile(
    r"\b\d{1,3}(?:\.\d{1,3}){3}\b|(?<![\w:.])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![\w:.])"
)


def host_facts(paths: Mapping[str, Path]) -> dict[str, object]:
    """What this host is, and for each label the storage that its path lies on.

    No user names and no addresses are in it; the host's own name is `node`. OSError for a path that
    can't be reached.
    """
    machine = virtual()
    return {
        "node": word(Path("/proc/sys/kernel/hostname")),
        "system": system(),
        "kernel": word(Path("/proc/sys/kernel/osrelease")),
        "architecture": platform.machine() or None,
        "virtual": machine,
        "container": container(),
        "python": platform.python_version(),
        "packages": package_versions(),
        "cpu": {
            **cpu_facts(),
            "affinity": len(os.sched_getaffinity(0)),
            "quota": quota_cores(),
            "effective": effective_cores(),
        },
        "memory": {**memory_facts(), "usable_bytes": available_bytes()},
        "cgroup_memory_limits": [asdict(limit) for limit in limits()],
        "process_limits": process_limits(),
        "shared_memory": _space(Path("/dev/shm")),
        "accelerators": accelerators(),
        "accelerator_nodes": device_nodes(),
        "accelerator_drivers": drivers(),
        "storage": {label: storage_facts(path, machine) for label, path in paths.items()},
    }


def storage_facts(path: Path, machine: str | None, root: Root = "/") -> dict[str, object]:
    """File system, mount and block device below an existing `path`; `machine` is the hypervisor."""
    mount = mount_of(path)
    return {"path": str(path), **mount_facts(mount, machine, root), "space": _space(path)}


def mount_facts(mount: Mount | None, machine: str | None, root: Root = "/") -> dict[str, object]:
    """The facts of a mount; all None where there is no mountinfo."""
    if mount is None:
        names = ("fs_type", "family", "mount_point", "source", "mounted_folder")
        return dict.fromkeys((*names, "options", "device", "cold", "charges_reader", "block"))
    kind = describe(mount.fs_type)
    block = block_device(mount, root)
    disk = None if block is None else str(block["disk"])
    return {
        "fs_type": mount.fs_type,
        "family": kind.family,
        "mount_point": mount.point,
        "source": _anonymous(mount.source),
        "mounted_folder": mount.root,
        "options": {"mount": mount.options, "file_system": _options(mount.super_options)},
        "device": mount.device,
        "cold": asdict(coldness(mount.fs_type, device=disk, virtual=machine)),
        "charges_reader": kind.charges_reader,
        "block": block,
    }


def _options(given: str) -> str:
    """Mount options without who mounted it from where."""
    kept = [option for option in given.split(",") if option.partition("=")[0] not in _PRIVATE]
    return _anonymous(",".join(kept))


def _anonymous(words: str) -> str:
    """A mount's source or options with network addresses masked: records are passed around."""
    return _ADDRESS.sub("<address>", words)


def _space(path: Path) -> dict[str, int] | None:
    """Total and free bytes (free: for this user) of a file system; None if it isn't there."""
    try:
        found = space(path)
    except OSError:
        return None
    return None if found is None else {"total_bytes": found.total, "free_bytes": found.free}


def package_versions() -> dict[str, str | None]:
    """Installed versions by distribution name; None where a package isn't installed."""
    return {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
