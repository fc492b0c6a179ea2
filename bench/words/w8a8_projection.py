"""From what was measured to another checkpoint and number of ranks. Arithmetic; an estimate.

Each stage takes as long for a byte as it did here. Bytes that more ranks divide become less with
them, those that each needs whole don't: what every rank keeps, and matrices cut within rows, which
are read from their first row to their last. Copying, quantising and laying out go with what a rank
keeps. The quantiser's search through whole rows goes with them too, which is a little too few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.words.w8a8_verdict import Verdict, WayTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Projected:
    """One way, one rank: bytes read, seconds by stage and in all; `alone` as the only rank of its
    host, `together` with all ranks on it, each reading for itself from the one storage (where the
    page cache serves the others, less) and sharing the host's cores."""

    fetched: int
    stages: Mapping[str, float]
    alone: float
    together: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """`source` and `quantised` are the sizes of the two checkpoints, in bytes."""

    verdict: Verdict
    source: int
    quantised: int
    tp: int
    online: Projected
    offline: Projected

    @property
    def share(self) -> float:
        """Which part of the measured checkpoint's bytes was quantised, to half of them."""
        return 2 * (1 - self.quantised / self.source)


def project(verdict: Verdict, nbytes: int, tp: int, *, of_quantised: bool = False) -> Projection:
    """`nbytes`: tensor bytes of the checkpoint that isn't quantised, or of the quantised one.
    ValueError unless both numbers are above 0 and the records have the sizes."""
    if nbytes <= 0 or tp <= 0:
        raise ValueError(f"expected more than 0 bytes and ranks, got {nbytes} and {tp}")
    base = (verdict.offline if of_quantised else verdict.online).checkpoint
    if base <= 0:
        raise ValueError("the records don't say how large the checkpoint was")
    times = nbytes / base
    measured = degree_of(verdict.place.ranks)
    shared = verdict.place.device == "cpu"
    return Projection(
        verdict=verdict,
        source=round(verdict.online.checkpoint * times),
        quantised=round(verdict.offline.checkpoint * times),
        tp=tp,
        online=_projected(verdict.online, times, measured, tp, shared),
        offline=_projected(verdict.offline, times, measured, tp, shared),
    )


def degree_of(ranks: str) -> int:
    """8 for `tp8` or `tp8-ep`."""
    return int(ranks.removesuffix("-ep").removeprefix("tp"))


def _projected(
    way: WayTimes, times: float, measured: int, tp: int, cores_shared: bool
) -> Projected:
    known = way.divided + way.whole
    now = way.divided * measured / tp + way.whole
    grown = times * (now / known if known else measured / tp)
    kept = times * measured / tp
    stages = {
        name: seconds * (grown if name == "read" else kept) for name, seconds in way.stages.items()
    }
    alone = sum(stages.values())
    together = sum(
        seconds * (tp if name == "read" or cores_shared else 1) for name, seconds in stages.items()
    )
    return Projected(
        fetched=round(way.fetched * grown), stages=stages, alone=alone, together=together
    )
