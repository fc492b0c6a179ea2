"""Bytes of every rank, without its pieces: tensors that are cut alike are counted together, so that
a model of a hundred thousand tensors and a hundred ways to divide it takes a second.

All figures are bytes and equal the sums over `build.plan_rank`'s pieces (a test holds it).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, replace
from typing import Final

from loaders.checkpoint.dtypes import itemsize
from loaders.checkpoint.manifest import Checkpoint, TensorSpec
from loaders.slicing.block import Block
from loaders.slicing.blocks import blocks_of
from loaders.slicing.build import check_place, experts_of, layers_of, stages_of
from loaders.slicing.model import WEIGHTS, Model, Named
from loaders.slicing.packed import elements_each
from loaders.slicing.placement import Placement, Remainder, check_degrees, expert_number
from loaders.slicing.plan import Degrees, Place

PAGE: Final = 4096
_Look = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """Tensors that are cut in the same way: one of them, the layers that have such (None where it
    belongs to no layer), and how many each of those has, or of which experts."""

    tensor: Named
    layers: tuple[int, ...] | None
    count: int
    experts: frozenset[int] | None

    def in_layers(self, first: int, end: int) -> int:
        """How many layers of the half-open range have such tensors."""
        assert self.layers is not None
        return bisect_left(self.layers, end) - bisect_left(self.layers, first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A model, its tensors counted. `all_bytes` are those of all tensors in the files, `skipped`
    those that no rank keeps, by reason without numbers; `filterable` what the EP filter can leave
    out, by expert."""

    model: Model
    alike: tuple[Alike, ...]
    all_bytes: int
    skipped_bytes: int
    filterable: dict[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBytes:
    """One rank's bytes. `kept`: from the files, in its parameters; equal to what reading just its
    slices takes. `padding`: rows that are allocated and zero. `after_load`: copies that MLA makes
    of its up-projection, in the model's dtype. `touched`: pages of 4 KiB that hold the slices,
    about: what a mapping faults in at the least. `read_filtered`: all but other ranks' experts, as
    the engine's filter leaves them out. `experts`: how many it has whole, None without EP."""

    place: Place
    layers: tuple[int, int]
    kept: int
    padding: int
    after_load: int
    read_all: int
    read_filtered: int
    touched: int
    by_kind: dict[str, int]
    experts: int | None

    @property
    def weights(self) -> int:
        """What an engine's "model weights took" stands for: all that's allocated for them."""
        return self.kept + self.padding + self.after_load


def count(model: Model, checkpoint: Checkpoint) -> Counted:
    """The model's tensors in groups. `checkpoint` is the one that the model was made of."""
    by_layer: dict[tuple[_Look, int | None], list[Named]] = {}
    for one in model.tensors:
        follows = one.weight is not one.spec
        look: _Look = (
            one.rule,
            one.attribute,
            one.spec.shape,
            one.spec.dtype,
            one.weight.shape,
            follows,
        )
        by_layer.setdefault((look, one.layer), []).append(one)
    groups: dict[tuple[_Look, int, frozenset[int] | None, bool], list[Named]] = {}
    for (look, _), some in by_layer.items():
        ids = (
            None
            if some[0].expert is None
            else frozenset(one.expert for one in some if one.expert is not None)
        )
        groups.setdefault((look, len(some), ids, some[0].layer is None), []).append(some[0])
    alike = tuple(
        Alike(
            tensor=firsts[0],
            layers=None
            if none
            else tuple(sorted(one.layer for one in firsts if one.layer is not None)),
            count=number,
            experts=ids,
        )
        for (_, number, ids, none), firsts in groups.items()
    )
    filterable: Counter[int] = Counter()
    for spec in checkpoint.tensors:
        if (expert := expert_number(spec.name)) is not None:
            filterable[expert] += spec.nbytes
    return Counted(
        model=model,
        alike=alike,
        all_bytes=checkpoint.tensor_bytes,
        skipped_bytes=sum(spec.nbytes for spec in checkpoint.tensors if spec.name in model.skipped),
        filterable=dict(filterable),
    )


def rank_bytes(
    counted: Counted,
    degrees: Degrees,
    rank: int,
    *,
    placement: Placement = "linear",
    remainder: Remainder = "spread",
) -> RankBytes:
    """The bytes of one rank. Errors as `build.plan_rank`."""
    model = counted.model
    place = check_place(model, degrees, rank)
    layers = layers_of(model, degrees, place)
    local = experts_of(model, degrees, place, placement, remainder)
    by_kind: Counter[str] = Counter()
    padding = after_load = touched = 0
    for alike in counted.alike:
        tensor, number = alike.tensor, alike.count
        if alike.layers is not None:
            number *= alike.in_layers(*layers)
        elif place.pp not in stages_of(tensor, model, degrees):
            continue
        if alike.experts is not None and degrees.ep > 1:
            mine = alike.experts.intersection(local)
            if not mine:
                continue
            tensor, number = replace(tensor, expert=min(mine)), number // alike.count * len(mine)
        size = itemsize(tensor.spec.dtype)
        for block in blocks_of(tensor, model.facts, degrees, place, local):
            elements = math.prod(block.shape)
            by_kind[tensor.rule.kind] += number * elements * size
            padding += number * size * _padded(block)
            touched += number * _touched(tensor.spec, block, size)
            if tensor.rule.latent and tensor.attribute in WEIGHTS:
                each = elements_each(tensor, model.facts.quantisation)
                after_load += number * elements * each * itemsize(_model_dtype(model, tensor.spec))
    others = sum(nbytes for id, nbytes in counted.filterable.items() if id not in local)
    return RankBytes(
        place=place,
        layers=layers,
        kept=sum(by_kind.values()),
        padding=padding,
        after_load=after_load,
        read_all=counted.all_bytes,
        read_filtered=counted.all_bytes - (others if degrees.ep > 1 else 0),
        touched=touched,
        by_kind=dict(by_kind),
        experts=len(local) if degrees.ep > 1 else None,
    )


def _padded(block: Block) -> int:
    if block.allocated is None:
        return 0
    others = math.prod(block.shape[: block.dim]) * math.prod(block.shape[block.dim + 1 :])
    return (block.allocated - block.shape[block.dim]) * others


def _touched(spec: TensorSpec, block: Block, size: int) -> int:
    """Bytes of the pages under a block: a run of n bytes that begins anywhere lies in n / page + 1
    of them, about; runs closer together than a page touch everything between them."""
    if not math.prod(block.shape):
        return 0
    inner = math.prod(spec.shape[block.dim + 1 :]) * size
    length = (block.stop - block.start) * inner
    row = (spec.shape[block.dim] if spec.shape else 1) * inner
    outer = math.prod(spec.shape[: block.dim])
    if length == row or outer == 1:
        return length * outer
    return outer * min(row, length + PAGE)


def _model_dtype(model: Model, spec: TensorSpec) -> str:
    """What MLA's copies are in: the model's dtype; the tensor's own where config.json is silent."""
    return model.facts.dtype or (spec.dtype if itemsize(spec.dtype) > 1 else "bfloat16")


def all_ranks(
    counted: Counted,
    degrees: Degrees,
    *,
    placement: Placement = "linear",
    remainder: Remainder = "spread",
) -> tuple[RankBytes, ...]:
    """The bytes of every rank, in the order of ranks. Errors as `build.plan_rank`."""
    check_degrees(degrees, counted.model.facts.experts)  # of no ranks, none would be checked
    return tuple(
        rank_bytes(counted, degrees, rank, placement=placement, remainder=remainder)
        for rank in range(degrees.world)
    )
