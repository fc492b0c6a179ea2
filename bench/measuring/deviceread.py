"""Bytes that this process fetched from storage, by the kernel's own count: /proc/<pid>/io, and the
control group's beside it."""

from __future__ import annotations

import os
from pathlib import Path

from bench.measuring.pagecache import evict
from loaders.system.cgroup import hierarchies
from loaders.system.files import Root, text, under
from loaders.system.residency import Residency

_TRIAL = 1 << 20


def parse_io(content: str) -> dict[str, int]:
    """The counters of a /proc/<pid>/io text, by name."""
    fields = (line.partition(":") for line in content.splitlines())
    return {name.strip(): int(value) for name, _, value in fields if value.strip().isdecimal()}


def device_read_bytes(root: Root = "/", *, pid: int | str = "self") -> int | None:
    """Bytes that the process caused to be fetched from storage since it started, all its threads
    together; None where the kernel doesn't count (no CONFIG_TASK_IO_ACCOUNTING) or doesn't tell.

    It counts what the file system charges to the reader: see `reader_is_charged`."""
    return parse_io(text(under(root, f"/proc/{pid}/io")) or "").get("read_bytes")


def reader_is_charged(path: Path, residency: Residency) -> bool | None:
    """Whether the file system of `path` charges this process for what it fetches, by trial: drops
    the file, reads the beginning and looks at the count. None where the trial proves nothing
    (nothing could be dropped, or residency can't be known).

    Disturbs the page cache of the file: a thing for set-up.
    """
    if device_read_bytes() is None:
        return False
    dropped = evict([path], residency)
    if dropped.total == 0 or dropped.remaining != 0:
        return None
    before = device_read_bytes()
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        got = len(os.pread(descriptor, _TRIAL, 0))
    finally:
        os.close(descriptor)
    after = device_read_bytes()
    if before is None or after is None or got == 0:
        return None
    return after > before


def group_read_bytes(root: Root = "/") -> int | None:
    """Bytes that this process's control group fetched since the group was made, from the device
    that it fetched most from (a stack of devices counts a byte once in each). A second witness:
    other processes of the group count too, and so do kernel threads that read on its behalf, which
    /proc/<pid>/io misses. None where no group counts."""
    for hierarchy in hierarchies("blkio", root) + hierarchies("io", root):
        group = hierarchy.groups[0]
        if hierarchy.version == 2:
            found = parse_io_stat(text(group / "io.stat") or "")
        else:
            found = parse_blkio(text(group / "blkio.throttle.io_service_bytes_recursive") or "")
        if found:
            return max(found.values())
    return None


def parse_io_stat(content: str) -> dict[str, int]:
    """Bytes read by device ("8:0") from a v2 io.stat: "8:0 rbytes=4096 wbytes=0 ..."."""
    found = {}
    for line in content.splitlines():
        device, *fields = line.split()
        for field in fields:
            name, _, value = field.partition("=")
            if name == "rbytes" and value.isdecimal():
                found[device] = int(value)
    return found


def parse_blkio(content: str) -> dict[str, int]:
    """The same from v1's blkio.throttle.io_service_bytes: "8:0 Read 4096"."""
    found = {}
    for line in content.splitlines():
        fields = line.split()
        if len(fields) == 3 and fields[1] == "Read" and fields[2].isdecimal():
            found[fields[0]] = int(fields[2])
    return found
