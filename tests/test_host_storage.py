"""Mounts and the block devices below them, on fixture files and fake trees of /sys."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.ground.filesystems import describe
from bench.host import blocks
from bench.host.facts import mount_facts
from loaders.system import mounts
from tests.tiny_host import fixture, tree

MOUNTS = mounts.parse(fixture("mountinfo.txt"))
QUEUE = {
    "rotational": "0\n",
    "scheduler": "[none] mq-deadline kyber\n",
    "read_ahead_kb": "128\n",
    "logical_block_size": "512\n",
    "physical_block_size": "4096\n",
    "max_sectors_kb": "1280\n",
    "nr_requests": "1023\n",
}


def _mount(path: str) -> mounts.Mount:
    found = mounts.mount_for(path, MOUNTS)
    assert found is not None
    return found


# --- mounts


@pytest.mark.parametrize(
    ("path", "fs_type", "family"),
    [
        ("/mnt/nfs/llama", "nfs4", "network"),
        ("/mnt/nfs3", "nfs", "network"),
        ("/mnt/lustre/a/b", "lustre", "network"),
        ("/mnt/cephfuse/x", "fuse.ceph", "fuse"),
        ("/mnt/ceph/x", "ceph", "network"),
        ("/mnt/virtiofs/x", "virtiofs", "network"),
        ("/mnt/merged/x", "overlay", "overlay"),
        ("/dev/shm/x", "tmpfs", "memory"),
        ("/mnt/nvme/x", "xfs", "local"),
        ("/mnt/nvme2/x", "zfs", "local"),
        ("/mnt/nvme22/x", "ext4", "local"),
        ("/mnt/nvm", "ext4", "local"),
        ("/srv/bind/shard", "xfs", "local"),
        ("/mnt/with space\\and\ttab/x", "ext4", "local"),
        ("/", "ext4", "local"),
    ],
)
def test_c93_file_system_of_a_path(path: str, fs_type: str, family: str) -> None:
    mount = _mount(path)
    assert mount.fs_type == fs_type
    assert describe(mount.fs_type).family == family


def test_of_stacked_mounts_the_last_wins() -> None:
    assert _mount("/mnt/stacked/x").source == "/dev/sdb1"


def test_fields_of_a_line() -> None:
    mount = _mount("/mnt/btrfs/model")
    assert (mount.root, mount.source, mount.device) == ("/@models", "/dev/sdb2", "0:52")
    assert "subvol=/@models" in mount.super_options
    assert _mount("/srv/bind").root == "/datasets/llama"
    assert _mount("/mnt/stacked").parent == 52


def test_no_mounts() -> None:
    assert mounts.mount_for("/x", []) is None


@pytest.mark.parametrize("line", ["", "1 2 3", "a b 0:1 / / rw - ext4 x rw", "1 2 0:1 / / rw ext4"])
def test_lines_that_are_none(line: str) -> None:
    if not line:
        assert mounts.parse(line) == []
        return
    with pytest.raises(ValueError, match="mountinfo"):
        mounts.parse(line)


def test_an_empty_source_is_legal() -> None:
    (mount,) = mounts.parse("1 2 0:1 / /x rw - tmpfs  rw")
    assert (mount.source, mount.super_options) == ("", "rw")


@given(
    st.text(
        st.characters(exclude_characters="\0/", exclude_categories=("Cs", "Cc")), min_size=1
    ).filter(lambda name: name not in (".", ".."))
)
def test_any_mount_point_survives_the_kernels_escapes(name: str) -> None:
    escaped = name.replace("\\", "\\134").replace(" ", "\\040").replace("#", "\\043")
    if len(escaped.splitlines()) != 1:
        return
    (mount,) = mounts.parse(f"1 2 8:1 / /mnt/{escaped} rw - ext4 /dev/sda1 rw")
    assert mounts.mount_for(f"/mnt/{name}/x", [mount]) is mount


def test_this_system_agrees_with_the_kernel(tmp_path: Path) -> None:
    mount = mounts.mount_of(tmp_path)
    assert mount is not None
    if not mount.device.startswith("0:"):
        device = tmp_path.stat().st_dev
        assert mount.device == f"{os.major(device)}:{os.minor(device)}"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_mount_that_covers_another_further_down(tmp_path: Path) -> None:
    """By mount points alone the inner one would be named, which can't be seen any more."""
    outer = tmp_path / "outer"
    inner = outer / "inner"
    inner.mkdir(parents=True)
    done = []
    try:
        for source, target in (("below", inner), ("cover", outer)):
            mounted = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=64k", source, str(target)],
                capture_output=True,
                text=True,
                check=False,
            )
            if mounted.returncode:
                pytest.skip(f"no mount here: {mounted.stderr.strip()}")
            done.append(target)
        (outer / "inner").mkdir()
        found = mounts.mount_of(outer / "inner")
        assert found is not None
        assert found.source == "cover"
    finally:
        for target in reversed(done):
            subprocess.run(["umount", str(target)], check=True)


# --- block devices


def _sys(root: Path) -> Path:
    """A partition on NVMe; LVM on two disks; a RAID; a btrfs disk; a loop device."""
    nvme = "sys/devices/pci0000:00/nvme/nvme0/nvme0n1"
    scsi = "sys/devices/pci0000:00/scsi/block"
    files = {
        f"{nvme}/device/model": "SAMSUNG MZQL23T8HCLS-00A07    \n",
        f"{nvme}/device/device/numa_node": "1\n",
        f"{nvme}/size": "7501476528\n",
        f"{nvme}/nvme0n1p1/partition": "1\n",
        f"{nvme}/nvme0n1p1/size": "2048\n",
        **{f"{nvme}/queue/{name}": value for name, value in QUEUE.items()},
        f"{scsi}/sda/queue/rotational": "1\n",
        f"{scsi}/sda/queue/scheduler": "none [mq-deadline]\n",
        f"{scsi}/sda/device/model": "ST16000NM001G\n",
        f"{scsi}/sdb/queue/rotational": "0\n",
        f"{scsi}/sdb/sdb2/partition": "2\n",
        f"{scsi}/sdb/sdb2/size": "4096\n",
        "sys/devices/virtual/block/dm-0/dm/name": "vg0-root\n",
        "sys/devices/virtual/block/dm-0/size": "8\n",
        "sys/devices/virtual/block/dm-0/queue/read_ahead_kb": "4096\n",
        "sys/devices/virtual/block/md127/md/level": "raid0\n",
        "sys/devices/virtual/block/md127/size": "16\n",
        "sys/devices/virtual/block/loop3/loop/backing_file": "/images/models.squashfs\n",
        "sys/devices/virtual/block/loop3/size": "24\n",
        "dev/.keep": "",
    }
    tree(root, files)
    virtual = "sys/devices/virtual/block"
    links = {
        "259:2": f"{nvme}/nvme0n1p1",
        "253:0": f"{virtual}/dm-0",
        "9:127": f"{virtual}/md127",
        "7:3": f"{virtual}/loop3",
    }
    for name, target in links.items():
        _link(root, f"sys/dev/block/{name}", target)
    names = {
        "nvme0n1": nvme,
        "nvme0n1p1": f"{nvme}/nvme0n1p1",
        "sda": f"{scsi}/sda",
        "sdb2": f"{scsi}/sdb/sdb2",
        "dm-0": f"{virtual}/dm-0",
    }
    for name, target in names.items():
        _link(root, f"sys/class/block/{name}", target)
    _link(root, f"{virtual}/dm-0/slaves/nvme0n1p1", f"{nvme}/nvme0n1p1")
    _link(root, f"{virtual}/dm-0/slaves/sda", f"{scsi}/sda")
    _link(root, f"{virtual}/md127/slaves/sda", f"{scsi}/sda")
    _link(root, f"{virtual}/md127/slaves/dm-0", f"{virtual}/dm-0")
    return root


def _link(root: Path, name: str, target: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(root / target, path.parent))


def test_a_partition_has_the_queue_of_its_disk(tmp_path: Path) -> None:
    block = blocks.block_device(_mount("/mnt/nvme/x"), _sys(tmp_path))
    assert block == {
        "name": "nvme0n1p1",
        "disk": "nvme0n1",
        "kind": "disk",
        "model": "SAMSUNG MZQL23T8HCLS-00A07",
        "size_bytes": 2048 * 512,
        "backing_file": None,
        "numa_node": 1,
        "rotational": False,
        "scheduler": "none",
        "read_ahead_kb": 128,
        "logical_block_bytes": 512,
        "physical_block_bytes": 4096,
        "max_sectors_kb": 1280,
        "max_hw_sectors_kb": None,
        "max_segments": None,
        "nr_requests": 1023,
        "write_cache": None,
        "below": [],
    }


def test_a_bind_mount_has_the_same_disk(tmp_path: Path) -> None:
    root = _sys(tmp_path)
    block = blocks.block_device(_mount("/srv/bind/x"), root)
    assert block == blocks.block_device(_mount("/mnt/nvme/x"), root)


def test_lvm_lists_the_disks_below(tmp_path: Path) -> None:
    block = blocks.block_device(_mount("/home"), _sys(tmp_path))
    assert block is not None
    assert (block["name"], block["kind"]) == ("dm-0", "device-mapper vg0-root")
    assert block["read_ahead_kb"] == 4096
    below = block["below"]
    assert isinstance(below, list)
    assert [(disk["name"], disk["disk"], disk["rotational"]) for disk in below] == [
        ("nvme0n1p1", "nvme0n1", False),
        ("sda", "sda", True),
    ]
    assert below[1]["scheduler"] == "mq-deadline"


def test_raid_above_lvm_is_followed_down(tmp_path: Path) -> None:
    block = blocks.block_device(_mount("/mnt/raid"), _sys(tmp_path))
    assert block is not None
    assert block["kind"] == "md raid0"
    below = block["below"]
    assert isinstance(below, list)
    assert [disk["name"] for disk in below] == ["dm-0", "sda"]
    assert [disk["name"] for disk in below[0]["below"]] == ["nvme0n1p1", "sda"]


def test_btrfs_has_no_device_number_and_is_found_by_its_source(tmp_path: Path) -> None:
    block = blocks.block_device(_mount("/mnt/btrfs"), _sys(tmp_path))
    assert block is not None
    assert (block["name"], block["disk"]) == ("sdb2", "sdb")


def test_mapper_name_without_a_node(tmp_path: Path) -> None:
    (mount,) = mounts.parse("1 2 0:99 /@ /x rw - btrfs /dev/mapper/vg0-root rw")
    block = blocks.block_device(mount, _sys(tmp_path))
    assert block is not None
    assert block["name"] == "dm-0"


@pytest.mark.parametrize("path", ["/mnt/merged", "/mnt/nfs", "/dev/shm", "/mnt/nvme2"])
def test_no_device_is_null(tmp_path: Path, path: str) -> None:
    assert blocks.block_device(_mount(path), _sys(tmp_path)) is None


def test_loop_device_is_named_and_not_really_cold(tmp_path: Path) -> None:
    facts = mount_facts(_mount("/mnt/image/x"), None, _sys(tmp_path))
    block = facts["block"]
    assert isinstance(block, dict)
    assert block["backing_file"] == "/images/models.squashfs"
    cold = facts["cold"]
    assert isinstance(cold, dict)
    assert cold["kind"] == "own-cache"


@pytest.mark.parametrize("path", ["/mnt/nfs", "/mnt/nfs3", "/mnt/lustre", "/mnt/ceph", "/mnt/v6"])
def test_c93_facts_of_network_mounts_hold_no_addresses(tmp_path: Path, path: str) -> None:
    facts = mount_facts(_mount(path), None, tmp_path)
    written = json.dumps(facts)
    assert "10." not in written
    assert "fd00" not in written
    assert "<address>" in str(facts["source"]) or facts["source"] == "filer:/vol/models"
    assert facts["family"] == "network"


def test_users_names_are_left_out(tmp_path: Path) -> None:
    written = json.dumps(mount_facts(_mount("/mnt/smb"), None, tmp_path))
    assert "alice" not in written
    assert "CORP" not in written
    assert "vers=3.1.1" in written
    written = json.dumps(mount_facts(_mount("/mnt/nfs"), None, tmp_path))
    assert "rsize=1048576" in written


def test_facts_without_mountinfo_are_null(tmp_path: Path) -> None:
    known = mount_facts(_mount("/mnt/nvme"), None, tmp_path)
    assert mount_facts(None, None) == dict.fromkeys(known)
