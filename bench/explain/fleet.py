"""What one start's times mean for a fleet. A simple formula, stated with its result."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

FORMULA = (
    "all up after = rest of one start + max(weights of one start, replicas x bytes / shared "
    "bandwidth); hours a month = starts a day x 30 x one start / 3600, starts one at a time"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """`seconds_until_all_up` if all replicas start at once; `limit` is what decides: "node" (one
    node's own weights stage) or "shared" (the bandwidth that all share)."""

    replicas: int
    shared_bandwidth: float | None
    starts_per_day: float
    bytes_per_replica: float | None
    node_seconds: float
    shared_seconds: float | None
    seconds_until_all_up: float
    limit: str
    hours_per_month: float
    formula: str = FORMULA

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def fleet(
    *,
    wall: float,
    weights: float,
    nbytes: float | None,
    replicas: int,
    shared_bandwidth: float | None,
    starts_per_day: float,
) -> Fleet:
    """`wall` and `weights` are seconds of one start, `nbytes` what a replica reads, the bandwidth
    in bytes/s. Without bytes or bandwidth only the node's own limit counts."""
    shared = replicas * nbytes / shared_bandwidth if nbytes and shared_bandwidth else None
    longest = max(weights, shared or 0.0)
    return Fleet(
        replicas=replicas,
        shared_bandwidth=shared_bandwidth,
        starts_per_day=starts_per_day,
        bytes_per_replica=nbytes,
        node_seconds=weights,
        shared_seconds=None if shared is None else round(shared, 3),
        seconds_until_all_up=round(wall - weights + longest, 3),
        limit="shared" if shared is not None and shared > weights else "node",
        hours_per_month=round(starts_per_day * 30 * wall / 3600, 3),
    )
