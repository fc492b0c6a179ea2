"""From a model and degrees to the plan of one rank."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loaders.checkpoint.text import listed, quoted, shown
from loaders.slicing.block import Block
from loaders.slicing.blocks import blocks_of
from loaders.slicing.config import needed
from loaders.slicing.errors import PlanError
from loaders.slicing.model import Model, Named
from loaders.slicing.placement import (
    Placement,
    Remainder,
    check_degrees,
    local_experts,
    stage_layers,
)
from loaders.slicing.plan import Degrees, Parameter, Piece, Place, RankPlan, place_of


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """One block on its way into a parameter. `slot` is its expert's place in the stack."""

    tensor: Named
    block: Block
    slot: int | None
    stages: int


def plan_rank(
    model: Model,
    degrees: Degrees,
    rank: int,
    *,
    placement: Placement = "linear",
    remainder: Remainder = "spread",
) -> RankPlan:
    """What rank `rank` of `degrees.world` keeps. `placement` and `remainder` say which experts go
    where (placement.local_experts). IndivisibleError or PlanError where an engine would refuse."""
    place = check_place(model, degrees, rank)
    layers = layers_of(model, degrees, place)
    local = experts_of(model, degrees, place, placement, remainder)
    groups: dict[str, list[_Share]] = {}
    for tensor in model.tensors:
        stages = stages_of(tensor, model, degrees)
        if place.pp not in stages:
            continue
        slot = _slot(tensor, degrees, local)
        for block in blocks_of(tensor, model.facts, degrees, place, local):
            share = _Share(tensor=tensor, block=block, slot=slot, stages=len(stages))
            groups.setdefault(target_of(tensor), []).append(share)
    slots = len(local) if degrees.ep > 1 else model.experts
    return RankPlan(
        place=place,
        degrees=degrees,
        layers=layers,
        parameters=tuple(_parameter(name, shares, slots) for name, shares in groups.items()),
        skipped=model.skipped,
    )


def check_place(model: Model, degrees: Degrees, rank: int) -> Place:
    """The rank's place; PlanError for degrees that the model's engine refuses as such."""
    check_degrees(degrees, model.facts.experts)
    if model.table.at_most_one_rank_per_expert and degrees.tp > model.experts > 0:
        raise PlanError(
            f"tp {degrees.tp} is greater than the number of experts, {model.experts}; the engine "
            "refuses it for this family"
        )
    return place_of(rank, degrees)


def layers_of(model: Model, degrees: Degrees, place: Place) -> tuple[int, int]:
    """The half-open range of layers of the place's pipeline stage."""
    if degrees.pp == 1 and model.facts.layers is None:
        return 0, max((one.layer + 1 for one in model.tensors if one.layer is not None), default=0)
    return stage_layers(needed(model.facts, "layers"), degrees.pp, place.pp)


def experts_of(
    model: Model, degrees: Degrees, place: Place, placement: Placement, remainder: Remainder
) -> range:
    """The experts that this rank has whole; all of them without EP."""
    if degrees.ep == 1:
        return range(model.experts)
    return local_experts(
        model.experts, degrees.ep, place.ep, placement=placement, remainder=remainder
    )


def stages_of(tensor: Named, model: Model, degrees: Degrees) -> Sequence[int]:
    """The pipeline stages that keep the tensor. A tied embedding is on the last one too, as its
    head (vLLM 0.33, the models' make_empty_intermediate_tensors and PPMissingLayer)."""
    last = degrees.pp - 1
    if last == 0:
        return (0,)
    if tensor.layer is not None:
        layers = needed(model.facts, "layers")
        bounds = (stage_layers(layers, degrees.pp, stage) for stage in range(degrees.pp))
        return [stage for stage, (a, b) in enumerate(bounds) if a <= tensor.layer < b]
    if tensor.rule.stage == "first":
        return (0, last) if model.tied and tensor.rule.cut == "vocab" else (0,)
    return (last,) if tensor.rule.stage == "last" else range(degrees.pp)


def _slot(tensor: Named, degrees: Degrees, local: range) -> int | None:
    if tensor.expert is None or degrees.ep == 1:
        return tensor.expert
    return local.index(tensor.expert) if tensor.expert in local else None


def target_of(tensor: Named) -> str:
    """The name of the parameter that a tensor belongs to."""
    rule, parent = tensor.rule, tensor.module.rpartition(".")[0]
    if rule.into is None:
        return tensor.spec.name
    if tensor.expert is not None:
        parent = parent.rpartition(".")[0]
    joint = "_" if rule.experts else "."
    return f"{parent}{'.' if parent else ''}{rule.into}{joint}{tensor.attribute}"


def _parameter(name: str, shares: list[_Share], slots: int) -> Parameter:
    first = shares[0].tensor
    rule = first.rule
    if rule.alone is not None and len({share.block.part for share in shares}) == 1:
        name = f"{first.module.rpartition('.')[0]}.{rule.alone}.{first.attribute}"
    dtypes = {share.tensor.spec.dtype: share.tensor.spec.name for share in shares}
    if len(dtypes) > 1:
        each = listed([f"{shown(tensor)} is {dtype}" for dtype, tensor in dtypes.items()])
        raise PlanError(
            f"{shown(name)}: its parts must have one dtype: {each}. Quantised and unquantised "
            "parts can't be fused: quantise all of them or none"
        )
    if first.expert is None:
        shape, pieces = _stacked(name, shares, ())
    else:
        shape, pieces = _experts(name, shares, slots)
    filled = sum(piece.elements for piece in pieces)
    return Parameter(
        name=name,
        kind=rule.kind,
        dtype=first.spec.dtype,
        shape=shape,
        pieces=tuple(piece for piece in pieces if piece.elements),
        padding=math.prod(shape) - filled,
    )


def _experts(name: str, shares: list[_Share], slots: int) -> tuple[tuple[int, ...], list[Piece]]:
    """Experts stacked in the order of their slots, all of one shape."""
    by_slot: dict[int, list[_Share]] = {}
    for share in shares:
        if share.slot is not None:
            by_slot.setdefault(share.slot, []).append(share)
    pieces: list[Piece] = []
    shapes: dict[tuple[int, ...], str] = {}
    for slot, own in sorted(by_slot.items()):
        shape, some = _stacked(name, own, (slot,))
        shapes.setdefault(shape, own[0].tensor.spec.name)
        pieces += some
    if len(shapes) > 1:
        each = listed([f"{list(shape)} of {shown(tensor)}" for shape, tensor in shapes.items()])
        raise PlanError(f"{shown(name)}: experts of one layer must have one shape, found {each}")
    return (slots, *next(iter(shapes))), pieces


def _stacked(
    name: str, shares: list[_Share], lead: tuple[int, ...]
) -> tuple[tuple[int, ...], list[Piece]]:
    """Parts below each other in the rule's order, and where each goes; `lead` stands before."""
    rule = shares[0].tensor.rule
    several = len(rule.of) > 1
    out_dim = shares[0].tensor.out_dim
    axis = 0 if shares[0].tensor.spec.shape[out_dim:] == () else out_dim
    if rule.stacked is not None and len(shares) > 1 and shares[0].block.dim == 0:
        axis = 0  # experts of this rank that don't lie together in the tensor
    order = {part: index for index, part in enumerate(rule.of)}
    ordered = sorted(shares, key=lambda share: order.get(share.block.part, 0))
    _check_parts(name, ordered)
    pieces: list[Piece] = []
    filled = 0
    trailing: dict[tuple[int, ...], str] = {}
    for share, own in zip(ordered, _shapes(ordered, several), strict=True):
        at = tuple(filled if dim == axis else 0 for dim in range(len(own)))
        pieces.append(_piece(share, (*lead, *at)))
        trailing.setdefault((*own[:axis], *own[axis + 1 :]), share.tensor.spec.name)
        filled += own[axis] if own else 1
    if len(trailing) > 1:
        each = listed([f"{list(shape)} of {shown(tensor)}" for shape, tensor in trailing.items()])
        raise PlanError(f"{shown(name)}: its parts must agree in all other dimensions: {each}")
    (rest,) = trailing
    whole = () if not _shapes(ordered, several)[0] else (*rest[:axis], filled, *rest[axis:])
    return whole, pieces


def _shapes(shares: list[_Share], several: bool) -> list[tuple[int, ...]]:
    """What each block takes up in the parameter: padding included, and a scalar as a row of one
    where several stand below each other."""
    found: list[tuple[int, ...]] = []
    for share in shares:
        block = share.block
        own = list(block.shape)
        if block.allocated is not None:
            own[block.dim] = block.allocated
        found.append(tuple(own) or ((1,) if several else ()))
    return found


def _check_parts(name: str, shares: list[_Share]) -> None:
    seen: dict[str, str] = {}
    for share in shares:
        tensor = share.tensor.spec.name
        other = seen.setdefault(share.block.part, tensor)
        if other != tensor:
            raise PlanError(
                f"{shown(name)}: both {shown(other)} and {shown(tensor)} fill its part "
                f"{quoted(share.block.part)}; the files hold it twice"
            )


def _piece(share: _Share, at: tuple[int, ...]) -> Piece:
    block = share.block
    return Piece(
        tensor=share.tensor.spec.name,
        dim=block.dim,
        start=block.start,
        stop=block.stop,
        shape=block.shape,
        at=at,
        replicas=block.replicas * share.stages,
    )


def plans(
    model: Model,
    degrees: Degrees,
    *,
    placement: Placement = "linear",
    remainder: Remainder = "spread",
) -> Iterator[RankPlan]:
    """The plan of every rank. Errors as `plan_rank`."""
    check_degrees(degrees, model.facts.experts)  # of no ranks, none would be checked
    for rank in range(degrees.world):
        yield plan_rank(model, degrees, rank, placement=placement, remainder=remainder)
