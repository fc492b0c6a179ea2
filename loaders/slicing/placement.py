"""Who gets which experts and which layers."""

from __future__ import annotations

import re
from typing import Literal

from loaders.slicing.errors import PlanError
from loaders.slicing.plan import Degrees

Placement = Literal["linear", "round_robin"]
Remainder = Literal["spread", "last"]

MOST_RANKS = 1 << 16  # each is planned by itself
_EXPERT = re.compile(r"\.experts\.(\d+)\.")


def local_experts(
    experts: int,
    ways: int,
    rank: int,
    *,
    placement: Placement = "linear",
    remainder: Remainder = "spread",
) -> range:
    """The experts of one of `ways` ranks, in the order of its slots.

    linear: contiguous; of the remainder, the first ranks get one each ("spread": vLLM >= 0.10.2,
    determine_expert_map), or the last rank gets all ("last": vLLM 0.8.5 to 0.9.2). round_robin:
    rank, rank + ways, ... (vLLM >= 0.11). With fewer experts than ranks, some get none.
    """
    if placement == "round_robin":
        return range(rank, experts, ways)
    base, rest = divmod(experts, ways)
    if remainder == "last":
        return range(rank * base, experts if rank == ways - 1 else (rank + 1) * base)
    start = rank * base + min(rank, rest)
    return range(start, start + base + (rank < rest))


def expert_number(name: str) -> int | None:
    """The expert of a tensor that the engine's EP filter can leave unread on other ranks; None for
    every other tensor. Scales are always read, and so are experts that are stored as one 3-D tensor
    (vLLM 0.33, ep_weight_filter; only with --enable-ep-weight-filter)."""
    if not name.endswith((".weight", ".weight_packed")):
        return None
    match = _EXPERT.search(name)
    return None if match is None else int(match[1])


def stage_layers(layers: int, pp: int, stage: int) -> tuple[int, int]:
    """The half-open range of layers of one pipeline stage: the remainder goes to the last stages
    but one, backwards, because the last one has the head (vLLM 0.33, get_pp_indices; its
    VLLM_PP_LAYER_PARTITION isn't modelled). PlanError where a stage would have none."""
    if pp > layers:
        raise PlanError(f"pp {pp}: the model has {layers} layers, which is less than {pp} stages")
    base, rest = divmod(layers, pp)
    sizes = [base + (pp - 1 - rest <= number < pp - 1) for number in range(pp)]
    start = sum(sizes[:stage])
    return start, start + sizes[stage]


def check_degrees(degrees: Degrees, experts: int | None) -> None:
    """PlanError for degrees that no engine takes, whatever the model's other sizes."""
    for name in ("tp", "pp", "dp", "ep"):
        value = getattr(degrees, name)
        if value < 1:
            raise PlanError(f"{name}: expected 1 or more, found {value}")
    if degrees.world > MOST_RANKS:
        raise PlanError(
            f"tp {degrees.tp} x pp {degrees.pp} x dp {degrees.dp} = {degrees.world:,} ranks: "
            f"expected at most {MOST_RANKS:,}"
        )
    if degrees.ep == 1:
        return
    if not experts:
        raise PlanError(
            f"ep {degrees.ep}: the model has no experts (config.json names none); leave --ep out"
        )
    if degrees.ep != degrees.expert_ways:
        raise PlanError(
            f"ep {degrees.ep} isn't tp {degrees.tp} x dp {degrees.dp} = {degrees.expert_ways}: "
            "with expert parallelism the experts of a stage are spread over all its ranks; "
            f"say --ep {degrees.expert_ways}"
            + (", or leave --ep out" if degrees.expert_ways > 1 else "; --tp and --dp set it")
        )
