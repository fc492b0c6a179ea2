"""What went on on the host while a sample was taken, whoever did it: at its disk, at its
processors, and what waited for them.

The runner looks right before the go and right after `done`, outside of the clock, through files
that are open already: a bare read each. Parsing waits until nothing is timed any more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from bench.record.records import Company
from loaders.system.files import Root, under

STAT, DISKS, LOAD = "/proc/stat", "/proc/diskstats", "/proc/loadavg"
PRESSURES = {what: f"/proc/pressure/{what}" for what in ("io", "cpu", "memory")}
SECTOR = 512
"""/proc/diskstats counts these, whatever the disk's own sectors are."""

LARGEST = 1 << 16

Look = dict[str, bytes]
"""The text of each file, by its path; those that can't be read here aren't in it."""


class Surroundings:
    """The host's counters, to be looked at with bare calls."""

    def __init__(self, root: Root = "/") -> None:
        self._open: dict[str, int] = {}
        for path in (STAT, DISKS, LOAD, *PRESSURES.values()):
            try:
                self._open[path] = os.open(under(root, path), os.O_RDONLY | os.O_CLOEXEC)
            except OSError:  # no such file here, or not for us: null in the record
                continue

    def look(self) -> Look:
        """What `company` understands."""
        seen = {}
        for path, descriptor in list(self._open.items()):
            try:
                seen[path] = _whole(descriptor) if path == DISKS else os.pread(descriptor, 4096, 0)
            except OSError:  # without psi=1 some kernels let it be opened, but not read
                os.close(self._open.pop(path))
        return seen

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])


def _whole(descriptor: int) -> bytes:
    """The kernel gives lists a page at a time, however much is asked for."""
    text = b""
    while part := os.pread(descriptor, LARGEST, len(text)):
        text += part
    return text


def company(before: Look, after: Look, disk: str | None) -> Company:
    """What came to pass between two looks; `disk` is the storage's, as /proc/diskstats names it."""
    changes: dict[str, Any] = {name: _change(before, after, name, disk) for name in _COUNTERS}
    return Company(disk=disk, load=_load(after.get(LOAD, b"")), **changes)


def _change(before: Look, after: Look, name: str, disk: str | None) -> float | None:
    """None where one of the looks doesn't tell, or where the counter went back (a disk that was
    taken out and put in again)."""
    path, figure = _COUNTERS[name]
    found = [
        figure(look[path].decode(), disk) if path in look else None for look in (before, after)
    ]
    if found[0] is None or found[1] is None or found[1] < found[0]:
        return None
    return found[1] - found[0]


def disk_bytes(text: str, disk: str | None, column: int) -> int | None:
    """Bytes of one column of a disk's line: 5 counts sectors read, 9 sectors written."""
    for line in text.splitlines():
        fields = line.split()
        if len(fields) > column and fields[2] == disk:
            return int(fields[column]) * SECTOR
    return None


def cpu_seconds(text: str, columns: tuple[int, ...]) -> float | None:
    """Seconds of all processors together, of these columns of /proc/stat's first line."""
    fields = text.partition("\n")[0].split()
    if not fields or fields[0] != "cpu" or len(fields) <= max(columns):
        return None
    return sum(int(fields[column]) for column in columns) / os.sysconf("SC_CLK_TCK")


def waited(text: str) -> float | None:
    """Seconds in which some task waited, of a /proc/pressure file."""
    for line in text.splitlines():
        kind, *fields = line.split()
        for field in fields:
            name, _, value = field.partition("=")
            if kind == "some" and name == "total" and value.isdecimal():
                return int(value) / 1e6
    return None


def _load(text: bytes) -> float | None:
    """Tasks that ran or waited for the disk, on average over the last minute."""
    words = text.split()
    return float(words[0]) if words else None


_WORKING = (1, 2, 3, 6, 7)  # user, nice, system, irq, softirq; not idle (4), waiting (5)
_STOLEN = (8,)
_COUNTERS: Mapping[str, tuple[str, Callable[[str, str | None], float | None]]] = {
    "disk_read_bytes": (DISKS, lambda text, disk: disk_bytes(text, disk, 5)),
    "disk_written_bytes": (DISKS, lambda text, disk: disk_bytes(text, disk, 9)),
    "cpu_seconds": (STAT, lambda text, disk: cpu_seconds(text, _WORKING)),
    "stolen_seconds": (STAT, lambda text, disk: cpu_seconds(text, _STOLEN)),
    **{
        f"{what}_pressure_seconds": (path, lambda text, disk: waited(text))
        for what, path in PRESSURES.items()
    },
}
"""Field of the record -> the file that it comes from, and how."""
