"""Small honest statistics: few samples, skewed, paired by pass. Pure functions, no I/O."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

BOOTSTRAP_FROM = 8
"""Below this many pairs an interval would be a decoration: the range is given instead."""

RESAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median with the range; `low == high` when there was one value."""

    n: int
    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A paired ratio a/b: the median over the passes, and between which bounds it lies. `kind`
    says what the bounds are: the range of the pairs, or a 95 % bootstrap interval of the median."""

    n: int
    median: float
    low: float
    high: float
    kind: str

    @property
    def shown(self) -> bool:
        """Whether a difference was shown: more than one pair, and 1 outside the bounds."""
        return self.n > 1 and not self.low <= 1.0 <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A paired difference a - b, as `Ratio` is a paired ratio; `of` is the median of a."""

    n: int
    of: float
    median: float
    low: float
    high: float
    kind: str


def spread(values: Sequence[float]) -> Spread | None:
    """None for no values."""
    if not values:
        return None
    return Spread(n=len(values), median=median(values), low=min(values), high=max(values))


def paired_ratio(a: Mapping[int, float], b: Mapping[int, float]) -> Ratio | None:
    """a/b over the passes (keys) that both have; None where they share none or b is 0 in one."""
    shared = sorted(a.keys() & b.keys())
    if not shared or any(b[number] == 0 for number in shared):
        return None
    ratios = [a[number] / b[number] for number in shared]
    (low, high), kind = _bounds(ratios)
    return Ratio(n=len(ratios), median=median(ratios), low=low, high=high, kind=kind)


def paired_saving(a: Mapping[int, float], b: Mapping[int, float]) -> Difference | None:
    """a - b over the passes (keys) that both have; None where they share none."""
    shared = sorted(a.keys() & b.keys())
    if not shared:
        return None
    found = [a[number] - b[number] for number in shared]
    (low, high), kind = _bounds(found)
    of = median(a[number] for number in shared)
    return Difference(n=len(found), of=of, median=median(found), low=low, high=high, kind=kind)


def _bounds(values: Sequence[float]) -> tuple[tuple[float, float], str]:
    if len(values) < BOOTSTRAP_FROM:
        return (min(values), max(values)), "range"
    return bootstrap_interval(values), "95 % interval"


def bootstrap_interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval of the median; seeded, so that a report can be made again."""
    draw = random.Random(seed)
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]


def unpaired_ratio(a: Sequence[float], b: Sequence[float], seed: int = 0) -> Ratio | None:
    """median(a) / median(b) of values that share no passes: between the furthest ratios that there
    are, or, from BOOTSTRAP_FROM values on each side, a 95 % bootstrap interval for which each side
    is drawn for itself. None where a side is empty or holds a 0."""
    if not a or not b or not all(b):
        return None
    kind, low, high = "range", min(a) / max(b), max(a) / min(b)
    if min(len(a), len(b)) >= BOOTSTRAP_FROM:
        draw = random.Random(seed)
        found = sorted(
            median(draw.choices(a, k=len(a))) / median(draw.choices(b, k=len(b)))
            for _ in range(RESAMPLES)
        )
        kind = "95 % interval"
        low, high = found[int(0.025 * RESAMPLES)], found[int(0.975 * RESAMPLES) - 1]
    ratio = median(a) / median(b)
    return Ratio(n=min(len(a), len(b)), median=ratio, low=low, high=high, kind=kind)
