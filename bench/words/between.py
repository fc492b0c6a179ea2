"""The same loader on several storages: a verdict for each, paired by pass. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from bench.record.summary import Row, noise, ratio
from bench.words.phrases import against, bounds, state, threads

SMALL = 16 << 20
"""Bytes below which a load is start-up, and no conclusion is drawn from it."""

Key = tuple[str, str, str, str]


def storages_compared(made: Sequence[Row]) -> list[str]:
    """For each loader that was measured on more than one storage in the same cache state: which is
    the faster for it, and by how much; behind them, the noise of those storages."""
    found: dict[Key, list[Row]] = {}
    for row in made:
        if row.twin or row.apart or row.state == "unverified" or row.nbytes < SMALL:
            continue
        key = state(row.group), row.group.ownership, row.title, threads(row.threads)
        found.setdefault(key, []).append(row)
    several = {key: rows for key, rows in found.items() if len(rows) > 1}
    said = []
    for cache, keys in groupby(several, key=lambda key: key[0]):
        labels: dict[str, None] = {}
        for key in keys:
            best, *others = sorted(several[key], key=lambda row: -row.rate.median)
            labels |= dict.fromkeys(str(row.group.storage) for row in (best, *others))
            said += [
                f"{key[2]}{key[3]}, {cache}: {best.group.storage} {against(ratio(best, other))} "
                f"{other.group.storage}."
                for other in others
            ]
        said += _noise_of(made, cache, labels)
    return said


def _noise_of(made: Sequence[Row], cache: str, labels: dict[str, None]) -> list[str]:
    each = [
        f"{row.group.storage} {pair.median:.2f} x ({bounds(pair)})"
        for row, pair in noise(made)
        if state(row.group) == cache and row.group.storage in labels
    ]
    return [f"Noise beside them, {cache}: {', '.join(each)}."] if each else []
