"""What the kernel counted for one process, read from /proc with as few calls as possible.

psutil would open the same files several times over; this is read for every process of an engine,
many times a minute, and must cost next to nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from bench.measuring.deviceread import parse_io
from loaders.system.files import Root, under

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGESIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Totals that only grow: CPU seconds, faults, bytes. `device_bytes` were fetched from storage,
    `read_bytes` went through read calls, whatever they came from (rchar: pipes count too);
    `block_wait_seconds` were spent waiting for block devices. None where the kernel doesn't
    tell."""

    cpu_seconds: float = 0.0
    system_seconds: float = 0.0
    minor_faults: int = 0
    major_faults: int = 0
    device_bytes: int | None = None
    read_bytes: int | None = None
    block_wait_seconds: float | None = None

    def plus(self, other: Counts) -> Counts:
        return self._with(other, 1)

    def minus(self, other: Counts) -> Counts:
        """What came since `other`; never below zero."""
        return self._with(other, -1)

    def _with(self, other: Counts, sign: int) -> Counts:
        return Counts(
            cpu_seconds=max(0.0, self.cpu_seconds + sign * other.cpu_seconds),
            system_seconds=max(0.0, self.system_seconds + sign * other.system_seconds),
            minor_faults=max(0, self.minor_faults + sign * other.minor_faults),
            major_faults=max(0, self.major_faults + sign * other.major_faults),
            device_bytes=_whole(self.device_bytes, other.device_bytes, sign),
            read_bytes=_whole(self.read_bytes, other.read_bytes, sign),
            block_wait_seconds=_real(self.block_wait_seconds, other.block_wait_seconds, sign),
        )


def _whole(one: int | None, other: int | None, sign: int) -> int | None:
    """A side that isn't known counts as none: a process that died before its /proc/<pid>/io could
    be read must not make the whole tree's bytes unknown. Both unknown stays unknown."""
    if one is None and other is None:
        return None
    return max(0, (one or 0) + sign * (other or 0))


def _real(one: float | None, other: float | None, sign: int) -> float | None:
    if one is None and other is None:
        return None
    return max(0.0, (one or 0.0) + sign * (other or 0.0))


NOTHING = Counts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process at one moment. `group` is its process group; `started` (clock ticks since boot)
    tells it from a later one with the same number; `state` is the first thread's ("D": waits for a
    device); `own` are its own counts, and `reaped` those of children that it has waited for. The
    bytes in `own` hold the reaped children's, too: the kernel adds them there (wait_task_zombie in
    kernel/exit.c)."""

    pid: int
    parent: int
    group: int
    started: int
    name: str
    state: str
    own: Counts
    reaped: Counts
    resident_bytes: int

    @property
    def total(self) -> Counts:
        return self.own.plus(self.reaped)


def read_process(pid: int, *, whole: bool = True, root: Root = "/") -> Process | None:
    """None if there is no such process (any more). Without its bytes unless `whole`."""
    stat = _read(f"/proc/{pid}/stat", root)
    if not stat:
        return None
    return parse_process(stat, (_read(f"/proc/{pid}/io", root) or b"") if whole else b"")


def parse_process(stat: bytes, io: bytes) -> Process | None:
    """From the texts of /proc/<pid>/stat (proc(5) has the fields) and /proc/<pid>/io; None for a
    stat that isn't one. The name is in parentheses and may hold anything, parentheses too."""
    head, _, rest = stat.rpartition(b")")
    pid, _, name = head.partition(b" (")
    fields = rest.split()
    if not pid.isdigit() or len(fields) < 22:
        return None
    numbers = [int(field) if field.lstrip(b"-").isdigit() else 0 for field in fields[1:]]
    # numbers[0] is the parent, field 4 of proc(5): field n is numbers[n - 4].
    user, system, child_user, child_system = (value / _TICKS for value in numbers[10:14])
    bytes_read = parse_io(io.decode("ascii", "replace"))
    return Process(
        pid=int(pid),
        parent=numbers[0],
        group=numbers[1],
        started=numbers[18],
        name=name.decode("utf-8", "replace"),
        state=fields[0].decode("ascii", "replace"),
        own=Counts(
            cpu_seconds=user + system,
            system_seconds=system,
            minor_faults=numbers[6],
            major_faults=numbers[8],
            device_bytes=bytes_read.get("read_bytes"),
            read_bytes=bytes_read.get("rchar"),
            block_wait_seconds=numbers[38] / _TICKS if len(numbers) > 38 else None,
        ),
        reaped=Counts(
            cpu_seconds=child_user + child_system,
            system_seconds=child_system,
            minor_faults=numbers[7],
            major_faults=numbers[9],
        ),
        resident_bytes=numbers[20] * _PAGE,
    )


def all_pids(root: Root = "/") -> list[int]:
    """Every process that this one can see."""
    with os.scandir(under(root, "/proc")) as entries:
        return [int(entry.name) for entry in entries if entry.name.isdecimal()]


def _read(path: str, root: Root) -> bytes | None:
    """A process may end at any moment, and others' files may be closed to us: both are None."""
    try:
        descriptor = os.open(path if root == "/" else under(root, path), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, 8192)
    except OSError:
        return None
    finally:
        os.close(descriptor)
