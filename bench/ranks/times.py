"""What several ranks' stamps say together. Pure arithmetic.

`began` and `ended` are readings of CLOCK_MONOTONIC, which all processes of a node share. Each node
has its own zero, the earliest start of its ranks, and ranks start when the barrier of all nodes
lets them go: between nodes `done_at` is right to the time that the barrier's last message takes,
some tenths of a millisecond, and no clock is compared with another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

RANK_FIELDS = ("open", "allocate", "read", "exchange", "transfer", "total")


def rank_record(
    report: Mapping[str, Any], *, rank: int, host: str, pid: int, zero: float, charged: bool
) -> dict[str, Any]:
    """What a sample's `details.ranks` says of one rank: seconds (`done_at` since the node's
    earliest start), bytes kept, asked of the files by the rank itself, and fetched from the device
    by it (null where the file system doesn't charge its readers)."""
    counters = report["counters"]
    return {
        "rank": rank,
        "host": host,
        "pid": pid,
        **{name: report[name] for name in RANK_FIELDS},
        "started_at": report["began"] - zero,
        "done_at": report["ended"] - zero,
        "bytes": report["bytes"],
        "asked": report["asked"],
        "fetched": counters["device_read_bytes"] if charged else None,
        "cpu_seconds": counters["cpu_seconds"],
        "peak_rss_bytes": report["peak_rss_bytes"],
    }


def together(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """first_done, last_done and start_spread in seconds, bytes kept and fetched by all (null where
    one rank's isn't known). The aggregate rate is bytes / last_done: from the earliest start to
    the latest end."""
    return {
        "first_done": min(one["done_at"] for one in ranks),
        "last_done": max(one["done_at"] for one in ranks),
        "start_spread": max(one["started_at"] for one in ranks),
        "bytes": sum(one["bytes"] for one in ranks),
        "fetched_bytes": added(one["fetched"] for one in ranks),
    }


def added(values: Any) -> Any:
    """The sum, None if one is."""
    found = list(values)
    return None if any(value is None for value in found) else sum(found)


def summed_counters(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The kernel's counts of all ranks together, null where one rank's isn't known."""
    names = reports[0]["counters"]
    return {name: added(one["counters"][name] for one in reports) for name in names}
