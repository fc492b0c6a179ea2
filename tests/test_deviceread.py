"""Bytes from the device, as the kernel counts them for a process."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from bench.ground.filesystems import charges_reader, describe
from bench.measuring.deviceread import (
    device_read_bytes,
    group_read_bytes,
    parse_blkio,
    parse_io,
    parse_io_stat,
    reader_is_charged,
)
from loaders.system.mounts import mount_of
from loaders.system.residency import UNKNOWN, choose_method
from tests.tiny_host import tree

IO = "rchar: 323934931\nwchar: 9\nsyscr: 632\nsyscw: 1\nread_bytes: 4096\nwrite_bytes: 0\n"


def test_counters_by_name() -> None:
    assert parse_io(IO)["read_bytes"] == 4096
    assert parse_io(IO)["rchar"] == 323934931
    assert parse_io("") == {}


def test_a_kernel_that_does_not_count_gives_null_and_not_zero(tmp_path: Path) -> None:
    assert device_read_bytes(tmp_path) is None
    assert device_read_bytes(tree(tmp_path, {"proc/self/io": "rchar: 1\n"})) is None
    assert device_read_bytes(tree(tmp_path, {"proc/self/io": IO})) == 4096
    assert device_read_bytes(tree(tmp_path, {"proc/77/io": IO}), pid=77) == 4096


def test_the_trial_agrees_with_the_table_here(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(os.urandom(2**20))
    mount = mount_of(file)
    assert mount is not None
    if describe(mount.fs_type).family != "local":
        pytest.skip(f"temporary files are on {mount.fs_type}")
    assert reader_is_charged(file, choose_method(file)) is charges_reader(mount.fs_type)


def test_the_trial_proves_nothing_where_nothing_can_be_dropped(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"abc")
    assert reader_is_charged(file, UNKNOWN) is None
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as held:
        path = Path(held.name)
        path.write_bytes(b"abc")
        assert reader_is_charged(path, choose_method(path)) is None


def test_group_bytes_are_read_from_both_versions() -> None:
    v2 = "8:0 rbytes=4096 wbytes=1 rios=1 wios=1 dbytes=0 dios=0\n253:0 rbytes=8192 wbytes=0\n"
    assert parse_io_stat(v2) == {"8:0": 4096, "253:0": 8192}
    v1 = "8:0 Read 4096\n8:0 Write 0\n8:0 Total 4096\nTotal 4096\n"
    assert parse_blkio(v1) == {"8:0": 4096}
    assert parse_io_stat("") == parse_blkio("") == {}


def test_group_bytes_of_a_fake_group(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/mine"
    group.mkdir(parents=True)
    (group / "io.stat").write_text("8:0 rbytes=4096 wbytes=0\n253:0 rbytes=4000 wbytes=0\n")
    proc = tmp_path / "proc/self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text("0::/mine\n")
    assert group_read_bytes(tmp_path) == 4096  # not the sum: dm on top of sda counts twice
    assert group_read_bytes(tmp_path / "nowhere") is None
