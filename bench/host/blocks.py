"""Block devices: from a file system's device number to the disks below it, by way of /sys."""

from __future__ import annotations

import os
from pathlib import Path

from loaders.system.files import Root, chosen, is_directory, listed, number, text, under, word
from loaders.system.mounts import Mount

_SECTOR = 512  # /sys/class/block/*/size counts these, whatever the disk's own sectors are


def block_device(mount: Mount, root: Root = "/") -> dict[str, object] | None:
    """The block device below `mount`, with its queue settings; None where there is none.

    btrfs, overlay and their like have a device number of their own (major 0) that names no device;
    then the mount's source is tried (/dev/sdb2 does, "overlay" doesn't).
    """
    directory = under(root, f"/sys/dev/block/{mount.device}")
    if not is_directory(directory):
        found = _by_source(mount.source, root)
        if found is None:
            return None
        directory = found
    return describe(directory, root)


def _by_source(source: str, root: Root) -> Path | None:
    """The /sys folder for a /dev path. Within containers the node itself is often missing."""
    if not source.startswith("/dev/"):
        return None
    base = under(root, "/sys/class/block")
    node = under(root, source)
    name = Path(os.path.realpath(node)).name
    if is_directory(base / name):
        return base / name
    if source.startswith("/dev/mapper/"):
        for candidate in listed(base):
            if text(base / candidate / "dm" / "name") == Path(source).name:
                return base / candidate
    return None


def describe(directory: Path, root: Root = "/") -> dict[str, object]:
    """Facts of one block device from its /sys folder. A partition has the queue of its disk; a
    mapped or RAID device has its own, and lists the devices below it under `below`."""
    folder = Path(os.path.realpath(directory))
    # Partitions lie inside their disk's folder; the class link must not be followed by name.
    disk = folder.parent if (folder / "partition").exists() else folder
    size = number(folder / "size")
    return {
        "name": folder.name,
        "disk": disk.name,
        "kind": _kind(disk),
        "model": word(disk / "device/model") or word(disk / "device/name"),
        "size_bytes": None if size is None else size * _SECTOR,
        "backing_file": word(disk / "loop/backing_file"),
        "numa_node": _numa_node(disk),
        **_queue(disk / "queue"),
        "below": [describe(disk / "slaves" / name, root) for name in listed(disk / "slaves")],
    }


def _kind(disk: Path) -> str:
    if (disk / "dm").is_dir():
        name = text(disk / "dm/name")
        return f"device-mapper {name}" if name else "device-mapper"
    if (disk / "md").is_dir():
        return f"md {text(disk / 'md/level') or 'array'}"
    if (disk / "loop").is_dir():
        return "loop"
    return "disk"


def _numa_node(disk: Path) -> int | None:
    node = number(disk / "device/numa_node")
    if node is None:
        node = number(disk / "device/device/numa_node")  # an nvme namespace: its controller's
    return node if node is not None and node >= 0 else None  # -1: the firmware didn't say


def _queue(queue: Path) -> dict[str, object]:
    """The settings that decide how large reads get and how many there are at once."""
    rotational = number(queue / "rotational")
    return {
        "rotational": None if rotational is None else bool(rotational),
        "scheduler": chosen(text(queue / "scheduler")),
        "read_ahead_kb": number(queue / "read_ahead_kb"),
        "logical_block_bytes": number(queue / "logical_block_size"),
        "physical_block_bytes": number(queue / "physical_block_size"),
        "max_sectors_kb": number(queue / "max_sectors_kb"),
        "max_hw_sectors_kb": number(queue / "max_hw_sectors_kb"),
        "max_segments": number(queue / "max_segments"),
        "nr_requests": number(queue / "nr_requests"),
        "write_cache": word(queue / "write_cache"),
    }
