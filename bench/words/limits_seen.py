"""What limits a load, from its own row and the ceilings of the same run. Pure functions.

The order of the questions matters: a load at its ceiling is limited by what the ceiling is; below
it, by the processor if that was busy, by fresh memory if that alone explains the time, else by too
little being asked for at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from bench.record.summary import ByPass, Group, Row, ceiling_for

AT_CEILING = 85.0
BUSY = 0.80
MOST = 0.5
ABOVE = 103.0
"""Percent of the ceiling from which a row contradicts it; a few are the noise of the clock."""


def limit(row: Row, tops: Mapping[Group, ByPass], cores: int) -> str:
    """A phrase for the row's column `limited by`."""
    if row.apart:
        return f"asked {row.group.cache}, was {row.state}"
    if row.percent is None:
        return "no ceiling measured"
    if row.percent.median > ABOVE:
        return "nothing: above its ceiling"
    storage = _storage_rate(row, tops)
    if storage is not None and row.rate.median >= AT_CEILING / 100 * storage:
        return "storage"
    memory = _touch_share(row, tops)
    if row.group.ownership == "owned" and memory is not None and memory >= MOST:
        return "first touch of memory"
    if row.percent.median >= AT_CEILING:
        return _ceiling_name(row)
    busy = (row.cpu_share or 0.0) * cores
    if busy >= BUSY * cores:
        return f"CPU ({_where(row)})"
    if busy >= BUSY:
        return f"one core ({_where(row)})"
    if row.group.cache == "cold":
        return "too few reads in flight"
    return f"waiting (CPU {100 * (row.cpu_share or 0.0):.0f} % busy)"


def _storage_rate(row: Row, tops: Mapping[Group, ByPass]) -> float | None:
    """What the storage itself gives, cold: direct reads into a ring."""
    if row.group.cache != "cold":
        return None
    ring = tops.get(Group(storage=row.group.storage, cache="cold", ownership="borrowed"))
    return median(ring.values()) if ring else None


def _touch_share(row: Row, tops: Mapping[Group, ByPass]) -> float | None:
    """The part of the row's time that first touch alone would take, by the run's own figure."""
    touch = ceiling_for(Group(storage=None, cache="none", ownership="owned"), tops)
    return row.rate.median / median(touch.values()) if touch else None


def _ceiling_name(row: Row) -> str:
    names = {
        ("mapped", "warm"): "memory bandwidth",
        ("borrowed", "warm"): "copying out of the page cache",
        ("owned", "warm"): "copying into fresh memory",
        ("owned", "cold"): "reading into fresh memory",
    }
    return names.get((row.group.ownership, row.group.cache), "its ceiling")


def _where(row: Row) -> str:
    share = row.system_share or 0.0
    return "faults and copies" if share >= MOST else "the program"
