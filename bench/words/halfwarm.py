"""Files of which a share is in the page cache: what each loader fetched, held against what was
absent. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from bench.record.cachestate import share_of
from bench.record.summary import Row, groups
from bench.sizes import format_size

ASKS_THE_CACHE = "adaptive"
"""The loader that promises to fetch no more than what is absent."""

MOST = 1.02
"""Times the absent bytes that it may fetch: headers and the rests of blocks."""


def device_bytes(made: Sequence[Row]) -> list[str]:
    """For each storage and share: the bytes that were absent, and how often over each loader
    fetched them from the device."""
    found: dict[tuple[str | None, str], list[Row]] = {}
    for group, members in groups(made).items():
        known = [row for row in members if not row.twin and not row.apart and _over(row)]
        if share_of(group.cache) is not None and known:
            found.setdefault((group.storage, group.cache), []).extend(known)
    said = []
    for (storage, cache), rows in found.items():
        absent = rows[0].absent or 0.0
        ranked = sorted(rows, key=lambda row: _over(row) or 0.0)
        each = ", ".join(dict.fromkeys(f"{row.title} {_over(row):.2f} x" for row in ranked))
        said.append(
            f"{cache} resident on {storage}: {format_size(round(absent))} were absent; fetched "
            f"from the device, of that: {each}."
        )
    return said


def fetched_too_much(made: Sequence[Row]) -> list[str]:
    """Rows of the loader that asks the page cache, and fetched what was in memory all the same."""
    return [
        f"{row.title}, {row.group.cache} resident on {row.group.storage}: fetched {over:.2f} x the "
        f"absent bytes, expected {MOST} x at most: is something else reading the files, or does "
        f"the file system read ahead?"
        for row in made
        if row.loader == ASKS_THE_CACHE and (over := _over(row)) is not None and over > MOST
    ]


def _over(row: Row) -> float | None:
    """Bytes from the device over those that were absent; None where either isn't known."""
    if not row.absent or row.fetched is None:
        return None
    return row.fetched / row.absent
