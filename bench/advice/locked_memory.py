"""The limit on locked memory, where pinned memory copies faster and the limit is in the way."""

from __future__ import annotations

from bench.advice.contract import Advice, Seen, between, rate_words
from bench.record.summary import Row, hardware, rows
from bench.sizes import format_size


def find(seen: Seen) -> Advice | None:
    """Copies to a device were measured out of pinned and out of pageable memory, pinned ones were
    faster, and this process may lock less than the payload."""
    limit = ((seen.host.get("process_limits") or {}).get("memlock") or {}).get("soft")
    ways = [row for row in rows(seen.run, "host_to_device") if hardware(row.group)]
    pinned, pageable = _fastest(ways, "pinned"), _fastest(ways, "pageable")
    if pinned is None or pageable is None or not isinstance(limit, int):
        return None
    saved = between(pageable, pinned)
    if limit >= pageable.nbytes or saved is None:
        return None
    return Advice(
        name="locked-memory",
        title="Let the engine lock memory",
        seen=f"To the device: {rate_words(pinned)} out of pinned memory, {rate_words(pageable)} "
        f"out of pageable memory; this process may lock {format_size(limit)}.",
        do=("ulimit -l unlimited", "docker run --ulimit memlock=-1 ..."),
        cost="locked memory can't be swapped or given to others",
        saving=saved,
    )


def _fastest(ways: list[Row], kind: str) -> Row | None:
    found = [row for row in ways if kind in row.title]
    return max(found, key=lambda row: row.rate.median, default=None)
