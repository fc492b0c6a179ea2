"""A checkpoint that was quantised beforehand, where quantising while loading takes longer."""

from __future__ import annotations

from bench.advice.contract import Advice, Saving, Seen
from bench.sizes import format_size
from bench.words.w8a8_verdict import Verdict, verdicts


def find(seen: Seen) -> Advice | None:
    """Both ways were measured from one storage, came to the same weights, and the one that reads
    int8 was faster; of several places the one where most is saved, cold ones first."""
    found = [one for one in verdicts(seen.run) if one.equal and _saves(one).shown]
    best = max(found, key=lambda one: (one.place.cache == "cold", one.saving.median), default=None)
    if best is None:
        return None
    place = best.place
    return Advice(
        name="quantise-before",
        title="Quantise the checkpoint before, not while it is loaded",
        seen=f"{place.cache.capitalize()} on {place.storage}, one rank of {place.ranks}, to int8 "
        f"weights in place: {best.online.total:.2f} s quantised while loading, "
        f"{best.offline.total:.2f} s quantised beforehand.",
        do=(
            "coldload quantize /path/to/model /path/to/quantised --format compressed-tensors",
            "vllm serve /path/to/quantised   # its config.json names the format",
        ),
        cost=f"{format_size(best.offline.checkpoint)} more on the disk for the model of this run, "
        f"made once; who serves bf16 today gets int8 weights, whose answers have to be checked; "
        f"who has such a checkpoint already gains nothing more",
        saving=_saves(best),
    )


def _saves(one: Verdict) -> Saving:
    saved = one.saving
    return Saving(
        seconds=saved.median,
        of=saved.of,
        low=saved.low,
        high=saved.high,
        n=saved.n,
        kind=saved.kind,
    )
