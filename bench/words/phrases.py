"""How sentences name places, thread counts and ratios."""

from __future__ import annotations

from bench.record.cachestate import share_of
from bench.record.stats import Ratio
from bench.record.summary import Group


def where(group: Group) -> str:
    """The group's place and cache state."""
    return f"on {group.storage}" if group.cache == "none" else f"{state(group)} on {group.storage}"


def state(group: Group) -> str:
    """The cache state as sentences name it: `cold`, `50% resident`."""
    return f"{group.cache} resident" if share_of(group.cache) else group.cache


def threads(count: int | None) -> str:
    """` with 2 threads`; empty for a way that takes none."""
    return "" if count is None else f" with {count} thread{'s' if count > 1 else ''}"


def against(pair: Ratio | None) -> str:
    """The words between what is faster and what it is held against."""
    if pair is None:
        return "has no pass in common with"
    if pair.n == 1:
        return f"was {pair.median:.2f} x as fast, in one pass (no spread known), as"
    if not pair.shown:
        return f"leads, but no difference shown ({pair.median:.2f} x, {bounds(pair)}), to"
    return f"is {pair.median:.2f} x ({bounds(pair)}) as fast as"


def bounds(pair: Ratio) -> str:
    """`0.87 to 1.16, range of 3`."""
    return f"{pair.low:.2f} to {pair.high:.2f}, {pair.kind} of {pair.n}"
