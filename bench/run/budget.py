"""How long a run will take, and how large a made-up checkpoint may be to fit. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bench.record.cachestate import share_of
from bench.record.cases import Case

SMALLEST = 16 << 20
FIXED = 0.2
"""Seconds of a sample that don't depend on its size: forking, starting threads, eviction."""

SPARED = 0.85
"""Part of the budget that a run is planned to take."""

COMPILING = {("quantise", "fast"): 4.0, ("w8a8", "online"): 4.0}
"""Seconds that a child compiles before its clock starts, by phase and way."""

MEMORY_RATE = 3e9
"""Bytes per second assumed for touching, freeing and summing memory around a sample."""

REFETCH = 0.4
"""Part of the warm samples that find their files evicted by a cold one before them."""


_SPENT = "the budget of "


def spent(budget: float) -> str:
    """Why a sample wasn't taken, in words: no fault of its case, which another run can measure."""
    return f"{_SPENT}{budget:.0f} s is spent"


def is_spent(reason: str | None) -> bool:
    """Whether a skipped sample's reason is that one."""
    return reason is not None and reason.startswith(_SPENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Bytes per second of a first look at a storage: direct, cold and warm into fresh memory."""

    direct: float
    cold: float
    warm: float


def sample_seconds(case: Case, size: int, rates: Rates | None) -> float:
    """Expected seconds of one sample with everything around it."""
    around = FIXED + COMPILING.get((case.phase, case.loader), 0.0) + size / MEMORY_RATE
    if rates is None or case.cache == "none":
        work = 2 if case.phase in {"ceiling", "disk_to_host"} else 5  # filling, working, proving
        return around + work * size / MEMORY_RATE
    if case.phase == "ceiling":
        refetch = REFETCH * size / rates.cold if case.cache == "warm" else 0.0
        rate = {"cold": rates.direct, "warm": rates.warm}[case.cache]
        return around + refetch + size / rate
    share = share_of(case.cache)
    resident = share.fraction if share is not None else float(case.cache == "warm")
    load = size * (resident / rates.warm + (1 - resident) / rates.cold)
    if share is not None:
        load += size * resident / rates.cold  # filling it
    prove = size / rates.warm + size / MEMORY_RATE
    refetch = REFETCH * size / rates.cold if case.cache == "warm" else 0.0
    return around + refetch + load + prove


def run_seconds(
    cases: Iterable[Case],
    passes: int,
    size: int,
    rates: Mapping[str, Rates],
    links: Mapping[str, float] | None = None,
) -> float:
    """Expected seconds of all passes; `rates` by storage label, `links` bytes per second from each
    store, by its label: from there, each sample is fetched a second time for its proof."""
    seconds = 0.0
    for case in cases:
        label = case.storage or ""
        seconds += sample_seconds(case, size, rates.get(label))
        if links and label in links:
            seconds += 2 * size / links[label]
    return passes * seconds


def fit(
    cases: list[Case], passes: int, size: int, budget: float, rates: Mapping[str, Rates]
) -> int:
    """The size halved until the run fits the budget, in seconds, with something to spare for a disk
    that slows down meanwhile; never below SMALLEST."""
    while size > SMALLEST and run_seconds(cases, passes, size, rates) > SPARED * budget:
        size = max(size // 2, SMALLEST)
    return size


def run_bytes(cases: Iterable[Case], passes: int, size: int) -> dict[str, int]:
    """The most that all passes fetch from each storage, by its label: a cold load and its proof
    each read everything where nothing is cached on the way, and so they do at a store; a warm file
    may have to be filled again."""
    found: dict[str, int] = {}
    for case in cases:
        if case.storage is None:
            continue
        times = 1 if case.phase == "ceiling" or case.cache == "warm" else 2
        found[case.storage] = found.get(case.storage, 0) + times * size
    return {label: passes * nbytes for label, nbytes in found.items()}
