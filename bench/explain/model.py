"""A log's weights figure against the checkpoint: which ways to divide the model predict it."""

from __future__ import annotations

from typing import Any

from bench.explain.findings import Finding
from bench.explain.held import made_while_loading
from bench.explain.record import ColdStart
from loaders.checkpoint.manifest import Checkpoint
from loaders.slicing.errors import PlanError
from loaders.slicing.match import Match, matches, meaning
from loaders.slicing.model import model_of
from loaders.slicing.plan import Degrees
from loaders.slicing.sizes import all_ranks, count

_MOST = 5
_FAR = 0.25
"""Deviation beyond which a prediction is none."""


def fit(checkpoint: Checkpoint, record: ColdStart) -> dict[str, Any]:
    """`{reason, stated, ranking}`: what the figure is under the degrees that the log states ("per
    worker", "whole model", "neither", null where they aren't stated or can't be), and the degrees
    that predict it, the nearest first. `reason` says why there is no ranking, else null."""
    figure = record.phases.weights_gb
    if not figure:
        return {"reason": "the log has no weights figure", "stated": None, "ranking": []}
    widest = next(iter(checkpoint.dtype_bytes), None)
    wide = widest in ("bfloat16", "float16", "float32")
    if wide and made_while_loading(record.quantization) < 1:
        reason = (
            f"{record.quantization} quantises this {widest} checkpoint while it is loaded: its "
            "bytes don't predict what a worker holds"
        )
        return {"reason": reason, "stated": None, "ranking": []}
    given = int(figure * 2**30)
    try:
        counted = count(model_of(checkpoint), checkpoint)
        ranking = matches(counted, given)[:_MOST]
    except PlanError as error:
        return {"reason": str(error), "stated": None, "ranking": []}
    stated = None
    if record.tensor_parallel_size:
        degrees = Degrees(
            tp=record.tensor_parallel_size,
            pp=record.pipeline_parallel_size or 1,
            dp=max(record.data_parallel_size or 1, len(record.dp_engines)),
            ep=max(1, len(record.ep_ranks)),
        )
        try:
            stated = meaning(given, all_ranks(counted, degrees))
        except PlanError:
            stated = None
    return {"reason": None, "stated": stated, "ranking": [_row(one) for one in ranking]}


def _row(match: Match) -> dict[str, Any]:
    one = match.degrees
    return {
        "tp": one.tp, "pp": one.pp, "dp": one.dp, "ep": one.ep,
        "predicted_gib": round(match.predicted / 2**30, 4),
        "deviation": round(match.deviation, 4),
    }  # fmt: skip


def finding(fitted: dict[str, Any], record: ColdStart) -> Finding | None:
    """What the ranking says, as one finding; None without a ranking."""
    if not fitted["ranking"]:
        return None
    best = fitted["ranking"][0]
    if abs(best["deviation"]) > _FAR:
        return Finding(
            code="weights_against_checkpoint",
            text=f"{record.phases.weights_gb:g} {record.phases.weights_unit} against the "
            f"checkpoint: no degrees predict it, the nearest are off by {best['deviation']:+.0%}",
            evidence=record.evidence["weights_gb"],
            next_step="Is it the checkpoint that was loaded, in the same dtype and quantisation?",
        )
    degrees = " ".join(f"{key}={best[key]}" for key in ("tp", "pp", "dp", "ep"))
    told = {
        "per worker": "it is one worker's share, as the log states the degrees",
        "whole model": "it is the whole model, although the log states several ranks",
        "neither": "it is neither one worker's share nor the whole under the stated degrees",
        None: "the log states no degrees that can be planned",
    }[fitted["stated"]]
    return Finding(
        code="weights_against_checkpoint",
        text=f"{record.phases.weights_gb:g} {record.phases.weights_unit} against the checkpoint: "
        f"{told}; nearest are {degrees} ({best['predicted_gib']:.4g} GiB, "
        f"{best['deviation']:+.1%})",
        evidence=record.evidence["weights_gb"],
        next_step="`coldload plan` shows each rank's bytes under other degrees.",
    )
