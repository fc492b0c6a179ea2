"""Which file systems can be cold, and which charge the reader for what they fetch."""

from __future__ import annotations

import pytest

from bench.ground.filesystems import charges_reader, coldness


@pytest.mark.parametrize(
    ("fs_type", "kind", "word"),
    [
        ("ext4", "ok", "cold"),
        ("xfs", "ok", "cold"),
        ("overlay", "ok", "cold"),
        ("tmpfs", "memory", "memory"),
        ("ramfs", "memory", "memory"),
        ("hugetlbfs", "memory", "memory"),
        ("nfs4", "server-cache", "server"),
        ("lustre", "server-cache", "server"),
        ("fuse.ceph", "server-cache", "server"),
        ("fuse.juicefs", "server-cache", "server"),
        ("virtiofs", "server-cache", "server"),
        ("9p", "server-cache", "server"),
        ("zfs", "own-cache", "own"),
        ("somethingfs", "unknown", "isn't known"),
    ],
)
def test_where_cold_can_be_had(fs_type: str, kind: str, word: str) -> None:
    found = coldness(fs_type)
    assert found.kind == kind
    assert word in found.words


def test_cold_in_a_virtual_machine_and_on_a_loop_device() -> None:
    assert coldness("ext4", virtual="kvm").words.startswith("cold in the guest")
    assert coldness("tmpfs", virtual="kvm").kind == "memory"
    assert coldness("ext4", device="loop3").kind == "own-cache"
    assert coldness("ext4", device="nvme0n1").words == "cold"


@pytest.mark.parametrize("fs_type", ["ext4", "xfs", "btrfs", "f2fs", "overlay", "nfs", "nfs4"])
def test_file_systems_that_charge_the_reader(fs_type: str) -> None:
    assert charges_reader(fs_type)


@pytest.mark.parametrize(
    "fs_type",
    ["zfs", "fuse", "fuse.ceph", "fuse.s3fs", "9p", "virtiofs", "lustre", "cifs", "tmpfs", "newfs"],
)
def test_file_systems_that_do_not_or_that_nobody_knows(fs_type: str) -> None:
    assert not charges_reader(fs_type)
