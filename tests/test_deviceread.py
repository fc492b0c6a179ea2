"""Bytes from the device, as the kernel counts them for a process."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from bench.deviceread import device_read_bytes, parse_io, reader_is_charged
from bench.filesystems import charges_reader, describe
from bench.host.mounts import mount_of
from bench.residency import UNKNOWN, choose_method
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
