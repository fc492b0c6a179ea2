"""Whether a difference is shown at all: exact rank tests for few passes. Pure, no I/O.

Ranks, because times of a disk have tails and no test may depend on their shape. Exact, because with
three passes an approximation is wrong; and so that it can be said beforehand how many passes it
takes until any difference could be shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, product
from math import comb, erfc, sqrt

LEVEL = 0.05
"""Of so many comparisons without a difference, one shows one by chance."""

MOST_PASSES = 100
"""Nobody waits for more."""

MOST_CASES = 20_000
"""Arrangements that are counted one by one; beyond, the normal approximation is good enough."""


def unpaired_p(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p of Mann and Whitney's test (1947): that values so apart come by chance. 1.0 where
    there are no values on one side."""
    n, m = len(a), len(b)
    if not n or not m:
        return 1.0
    ranks = _ranks([*a, *b])
    middle = n * (n + m + 1) / 2
    apart = abs(sum(ranks[:n]) - middle)
    if comb(n + m, n) <= MOST_CASES:
        sums = [abs(sum(chosen) - middle) for chosen in combinations(ranks, n)]
        return sum(found >= apart - 1e-9 for found in sums) / len(sums)
    mean = sum(ranks) / len(ranks)
    spread = sum((rank - mean) ** 2 for rank in ranks) / (n + m - 1) * n * m / (n + m)
    return _normal(apart, spread)


def paired_p(differences: Sequence[float]) -> float:
    """Two-sided p of Wilcoxon's signed-rank test (1945): that differences so one-sided come by
    chance. Differences of 0 say nothing and are left out."""
    told = [value for value in differences if value]
    if not told:
        return 1.0
    ranks = _ranks([abs(value) for value in told])
    total = sum(ranks)
    apart = abs(2 * sum(r for r, value in zip(ranks, told, strict=True) if value > 0) - total)
    if 2 ** len(told) <= MOST_CASES:
        signs = product((0, 1), repeat=len(told))
        sums = [
            abs(2 * sum(r for r, sign in zip(ranks, chosen, strict=True) if sign) - total)
            for chosen in signs
        ]
        return sum(found >= apart - 1e-9 for found in sums) / len(sums)
    return _normal(apart, sum(rank**2 for rank in ranks))


def could_show(n: int, m: int | None = None) -> bool:
    """Whether the clearest difference there can be would be shown: with `n` pairs, or with `n` and
    `m` passes that aren't paired."""
    least = 2 / 2**n if m is None else 2 / comb(n + m, n)
    return least <= LEVEL


def passes_needed(*, paired: bool) -> int:
    """From how many passes (of each) on a difference could be shown."""
    return next(n for n in range(1, 99) if could_show(n, None if paired else n))


def passes_to_show(p_of: Callable[[int], float], n: int) -> int | None:
    """How many passes would show a difference of which `n` showed none, if further ones came as
    those did: `p_of(times)` is the p of all values taken so many times. None beyond MOST_PASSES."""
    for times in range(2, MOST_PASSES // n + 1):
        if p_of(times) <= LEVEL:
            return times * n
    return None


def _ranks(values: Sequence[float]) -> list[float]:
    """1 for the least; equal values share the middle of theirs."""
    order = sorted(values)
    first = {value: order.index(value) for value in dict.fromkeys(order)}
    return [first[value] + (order.count(value) + 1) / 2 for value in values]


def _normal(apart: float, variance: float) -> float:
    return erfc(apart / sqrt(2 * variance)) if variance else 1.0
