"""Snapshots over time, so that the counts between any two moments can be told."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.watch.processes import Counts
from bench.watch.tree import Snapshot

MOST = 4096
"""Snapshots that are kept. When there are more, every other one goes: a start-up of hours is known
by the second rather than by the tenth of one."""

SHARE = 0.004
"""Of one core, for sampling. The rest of the 1 % is for passing lines on and reading them."""

FASTEST, SLOWEST = 0.05, 10.0


def next_interval(cost: float) -> float:
    """Seconds until the next look, so that looks of `cost` CPU seconds take SHARE of a core."""
    return min(SLOWEST, max(FASTEST, cost / SHARE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A snapshot with what else was read then: the host's seconds in which some process was stalled
    on input and output, or waited for a core (/proc/pressure), and bytes in use on the
    accelerators; None where that can't be read."""

    snapshot: Snapshot
    stalled_seconds: float | None = None
    short_of_cores_seconds: float | None = None
    device_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What was counted between two moments. `busiest_cpu_seconds` adds up, for each look, the
    process that used most; `looks` are those that tell of some of the time, `blocked` is the share
    of them at which some process waited for a device, None if there was none."""

    wall_seconds: float
    counts: Counts
    busiest: str | None
    busiest_cpu_seconds: float
    blocked: float | None
    stalled_seconds: float | None
    short_of_cores_seconds: float | None
    peak_resident_bytes: int | None
    device_memory_bytes: int | None
    looks: int


class Series:
    """Moments in the order of their times."""

    def __init__(self) -> None:
        self._moments: list[Moment] = []

    def add(self, moment: Moment) -> None:
        self._moments.append(moment)
        if len(self._moments) > MOST:
            self._moments = _thinned(self._moments)

    def __len__(self) -> int:
        return len(self._moments)

    def between(self, begin: float, end: float) -> Span | None:
        """What came in [begin, end], with counts interpolated between the looks on both sides;
        None before anything was seen."""
        if not self._moments:
            return None
        times = [moment.snapshot.time for moment in self._moments]
        first, last = _at(self._moments, times, begin), _at(self._moments, times, end)
        inside: list[Moment] = []
        used: dict[str, float] = {}
        for before, moment in pairwise([None, *self._moments]):
            assert moment is not None
            since = before.snapshot.time if before else 0.0
            part = _overlap(since, moment.snapshot.time, begin, end)
            if part <= 0:
                continue
            inside.append(moment)
            # A look tells of the time since the look before it, whichever stage that lies in.
            name = moment.snapshot.busiest
            if name is not None:
                used[name] = used.get(name, 0.0) + part * moment.snapshot.busiest_cpu_seconds
        counts = last.counts.minus(first.counts)
        memory = [moment.device_memory_bytes for moment in inside]
        known = [size for size in memory if size is not None]
        return Span(
            wall_seconds=max(0.0, end - begin),
            counts=counts,
            busiest=max(used, key=lambda name: used[name]) if used else None,
            busiest_cpu_seconds=min(sum(used.values()), counts.cpu_seconds),
            blocked=_share([moment.snapshot.blocked for moment in inside]),
            stalled_seconds=_difference(last.stalled, first.stalled),
            short_of_cores_seconds=_difference(last.short, first.short),
            peak_resident_bytes=max(
                (moment.snapshot.resident_bytes for moment in inside), default=None
            ),
            device_memory_bytes=max(known, default=None),
            looks=len(inside),
        )


def _overlap(since: float, time: float, begin: float, end: float) -> float:
    """The part of a look's interval (since, time] that lies in [begin, end]."""
    if time <= since:
        return 1.0 if begin < time <= end else 0.0
    return max(0.0, min(time, end) - max(since, begin)) / (time - since)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    counts: Counts
    stalled: float | None
    short: float | None


def _at(moments: Sequence[Moment], times: Sequence[float], time: float) -> _Level:
    """The totals at `time`: in a straight line between the looks before and after."""
    after = bisect_right(times, time)
    if after == 0:
        return _level(moments[0], Counts())
    left = moments[after - 1]
    if after == len(moments) or times[after] == times[after - 1]:
        return _level(left, left.snapshot.counts)
    right = moments[after]
    part = (time - times[after - 1]) / (times[after] - times[after - 1])
    grown = right.snapshot.counts.minus(left.snapshot.counts)
    return _Level(
        counts=left.snapshot.counts.plus(_part(grown, part)),
        stalled=_between(left.stalled_seconds, right.stalled_seconds, part),
        short=_between(left.short_of_cores_seconds, right.short_of_cores_seconds, part),
    )


def _level(moment: Moment, counts: Counts) -> _Level:
    return _Level(
        counts=counts, stalled=moment.stalled_seconds, short=moment.short_of_cores_seconds
    )


def _part(counts: Counts, part: float) -> Counts:
    return Counts(
        cpu_seconds=counts.cpu_seconds * part,
        system_seconds=counts.system_seconds * part,
        minor_faults=round(counts.minor_faults * part),
        major_faults=round(counts.major_faults * part),
        device_bytes=_rounded(counts.device_bytes, part),
        read_bytes=_rounded(counts.read_bytes, part),
        block_wait_seconds=None
        if counts.block_wait_seconds is None
        else counts.block_wait_seconds * part,
    )


def _rounded(value: int | None, part: float) -> int | None:
    return None if value is None else round(value * part)


def _between(left: float | None, right: float | None, part: float) -> float | None:
    return None if left is None or right is None else left + (right - left) * part


def _difference(later: float | None, earlier: float | None) -> float | None:
    return None if later is None or earlier is None else max(0.0, later - earlier)


def _share(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None


def _thinned(moments: Sequence[Moment]) -> list[Moment]:
    """Every other moment, the last one always. What a look had seen of its own interval (who was
    busiest, whether something waited) goes into the look that follows."""
    kept: list[Moment] = []
    for at, moment in enumerate(moments):
        if at % 2 and at != len(moments) - 1:
            continue
        kept.append(_joined(moments[at - 1], moment) if at % 2 == 0 and at else moment)
    return kept


def _joined(dropped: Moment, moment: Moment) -> Moment:
    earlier, later = dropped.snapshot, moment.snapshot
    same = earlier.busiest == later.busiest
    used = later.busiest_cpu_seconds + (earlier.busiest_cpu_seconds if same else 0.0)
    busier = later
    if not same and earlier.busiest_cpu_seconds > later.busiest_cpu_seconds:
        busier, used = earlier, earlier.busiest_cpu_seconds
    return Moment(
        snapshot=Snapshot(
            time=later.time,
            counts=later.counts,
            resident_bytes=max(earlier.resident_bytes, later.resident_bytes),
            alive=later.alive,
            blocked=later.blocked,
            busiest=busier.busiest,
            busiest_cpu_seconds=used,
        ),
        stalled_seconds=moment.stalled_seconds,
        short_of_cores_seconds=moment.short_of_cores_seconds,
        device_memory_bytes=_larger(dropped.device_memory_bytes, moment.device_memory_bytes),
    )


def _larger(one: int | None, other: int | None) -> int | None:
    return max(one, other) if one is not None and other is not None else one or other
