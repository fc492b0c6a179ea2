"""Bytes that this process fetched from storage, by the kernel's own count: /proc/<pid>/io."""

from __future__ import annotations

import os
from pathlib import Path

from bench.host.files import Root, text, under
from bench.pagecache import evict
from bench.residency import Residency

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
