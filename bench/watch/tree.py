"""The whole process tree below one process: who is in it, and what all of it has counted.

Children come and go. What a dead one had counted isn't lost: the kernel adds it to the parent that
waited for it, and where no parent did, what was last seen of it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from bench.watch.processes import NOTHING, Counts, Process, all_pids, read_process


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The tree at one moment (`time`: seconds of the caller's clock). `counts` since the tree
    began; `busiest` is the process that has used most CPU since the last snapshot, with those
    seconds; `blocked` tells whether a process waited for a device just then; `alive` counts
    processes that aren't zombies."""

    time: float
    counts: Counts
    resident_bytes: int
    alive: int
    blocked: bool
    busiest: str | None
    busiest_cpu_seconds: float


class Read(Protocol):
    """Reads a process: all of it, or (`whole` is false) without its bytes."""

    def __call__(self, pid: int, *, whole: bool) -> Process | None: ...


class Tree:
    """Follows all descendants of process `top`, the watcher, which isn't counted itself.

    `pids` and `read` say where processes come from: fakes in tests.
    """

    def __init__(
        self,
        top: int,
        *,
        pids: Callable[[], Iterable[int]] = all_pids,
        read: Read = read_process,
    ) -> None:
        self._top = top
        self._pids = pids
        self._read = read
        self._strangers: set[int] = set()
        self._members: dict[int, Process] = {}
        self._dead = NOTHING

    def look(self, time: float) -> Snapshot:
        """Reads every process of the tree."""
        before = self._members
        now = self._find()
        gone = [seen for pid, seen in before.items() if _same(now.get(pid), seen) is None]
        for lost in unaccounted(gone, before, now):
            self._dead = self._dead.plus(lost.total)
        self._members = now
        counts = self._dead
        for process in now.values():
            counts = counts.plus(process.total)
        name, used = _busiest(now, before)
        return Snapshot(
            time=time,
            counts=counts,
            resident_bytes=sum(process.resident_bytes for process in now.values()),
            alive=sum(process.state not in "ZX" for process in now.values()),
            blocked=any(process.state == "D" for process in now.values()),
            busiest=name,
            busiest_cpu_seconds=used,
        )

    def processes(self) -> list[Process]:
        """The members as last seen, without zombies."""
        return [process for process in self._members.values() if process.state not in "ZX"]

    def _find(self) -> dict[int, Process]:
        """All members now. A process that once was found to be a stranger isn't read again while
        its number is in use: the list of numbers is all that a large host's others cost."""
        listed = set(self._pids()) - {self._top}
        self._strangers &= listed
        read: dict[int, Process] = {}
        for pid in listed - self._strangers:
            process = self._read(pid, whole=pid in self._members)
            if process is not None:
                read[pid] = process
        members: dict[int, Process] = {}
        for pid, process in read.items():
            if self._belongs(process, read):
                known = pid in self._members
                members[pid] = process if known else self._read(pid, whole=True) or process
            elif pid not in self._members:
                self._strangers.add(pid)
        return members

    def _belongs(self, process: Process, read: Mapping[int, Process]) -> bool:
        """Whether the chain of parents ends at the top. A member whose parent has died, and that
        the kernel gave to process 1, stays a member."""
        if _same(self._members.get(process.pid), process) is not None:
            return True
        at: Process | None = process
        for _ in range(len(read) + 1):
            if at is None:
                return False
            if at.parent == self._top or at.parent in self._members:
                return True
            at = read.get(at.parent)
        return False


def _same(one: Process | None, other: Process) -> Process | None:
    """`one`, if it is the same process as `other` and not a later one with its number."""
    return one if one is not None and one.started == other.started else None


def unaccounted(
    gone: Iterable[Process], before: Mapping[int, Process], now: Mapping[int, Process]
) -> list[Process]:
    """Of the processes that are gone, those whose counts no living ancestor has taken over.

    A parent that waits for its child takes over all of the child's counts. Whether it did is seen
    in the faults of its reaped children, which every process has some of: they must have risen by
    at least what was last seen of the child. A parent that ignores its children, or that died
    before them, takes over nothing.
    """
    lost: list[Process] = []
    room: dict[int, int] = {}
    for child in sorted(gone, key=lambda process: process.total.minor_faults, reverse=True):
        heir = _heir(child, before, now)
        if heir is None:
            lost.append(child)
            continue
        if heir.pid not in room:
            earlier = before[heir.pid].reaped if heir.pid in before else NOTHING
            room[heir.pid] = heir.reaped.minor_faults - earlier.minor_faults
        faults = child.total.minor_faults
        if 0 < faults <= room[heir.pid]:
            room[heir.pid] -= faults
        else:
            lost.append(child)
    return lost


def _heir(
    child: Process, before: Mapping[int, Process], now: Mapping[int, Process]
) -> Process | None:
    """The nearest ancestor that is still there."""
    at = child
    for _ in range(len(before) + 1):
        parent = before.get(at.parent)
        if parent is None:
            return None
        living = _same(now.get(parent.pid), parent)
        if living is not None:
            return living
        at = parent
    return None


def _busiest(now: Mapping[int, Process], before: Mapping[int, Process]) -> tuple[str | None, float]:
    best: tuple[str | None, float] = (None, 0.0)
    for pid, process in now.items():
        earlier = _same(before.get(pid), process)
        used = process.own.cpu_seconds - (earlier.own.cpu_seconds if earlier else 0.0)
        if used > best[1]:
            best = (f"{process.name}[{pid}]", used)
    return best
