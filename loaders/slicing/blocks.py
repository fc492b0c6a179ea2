"""One rank's part of one tensor. Rules of vLLM 0.33: layers/linear.py, vocab_parallel_embedding.py,
fused_moe/routed_experts.py. Weights are [out, in]; those of all experts [E, out, in]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from loaders.checkpoint.text import shown
from loaders.slicing.block import Block
from loaders.slicing.config import ModelFacts, Quantisation, needed
from loaders.slicing.errors import IndivisibleError, PlanError
from loaders.slicing.model import WEIGHTS, WHOLE, Named
from loaders.slicing.packed import matrix_shape, packed_block
from loaders.slicing.plan import Degrees, Place

VOCAB_PADDING: Final = 64  # rows; vLLM's DEFAULT_VOCAB_PADDING_SIZE


def blocks_of(
    tensor: Named, facts: ModelFacts, degrees: Degrees, place: Place, local: range
) -> tuple[Block, ...]:
    """What the rank keeps of a tensor, in the order of its parts; nothing where the tensor is
    another rank's expert. `local` are the rank's experts under EP. IndivisibleError, PlanError."""
    rule, shape = tensor.rule, tensor.spec.shape
    everyone = degrees.expert_ways
    if rule.experts and degrees.ep > 1:
        if rule.stacked is None:
            return (_whole(shape, rule.parts, 1),) if tensor.expert in local else ()
        return tuple(_own_experts(shape, local))
    if rule.cut == "whole" or tensor.attribute in WHOLE:
        return (_whole(shape, rule.parts, everyone),)
    packed = tensor.packed
    weight_shape = matrix_shape(tensor, facts.quantisation) if packed else tensor.weight.shape
    if tensor.weight is tensor.spec and tensor.attribute not in WEIGHTS:
        raise PlanError(
            f"{shown(tensor.spec.name)}: there is no {shown(tensor.module)}.weight beside it, "
            "which would say how it is cut"
        )
    cuts = tuple(_weight_blocks(tensor, weight_shape, facts, degrees, place))
    if packed:
        own = [packed_block(cut, tensor, facts.quantisation) for cut in cuts]
        return _all_or_whole(own, shape, rule.parts, everyone)
    if tensor.attribute in WEIGHTS:
        return cuts
    steps = _steps(tensor, facts.quantisation)
    followed = [_follow(cut, tensor, steps) for cut in cuts]
    return _all_or_whole(followed, shape, rule.parts, everyone)


def _all_or_whole(
    found: Sequence[Block | None], shape: tuple[int, ...], parts: tuple[str, ...], everyone: int
) -> tuple[Block, ...]:
    if None in found:
        return (_whole(shape, parts, everyone),)
    return tuple(block for block in found if block is not None)


def _whole(shape: tuple[int, ...], parts: tuple[str, ...], replicas: int) -> Block:
    part = parts[0] if parts else ""
    stop = shape[0] if shape else 1
    return Block(part=part, dim=0, start=0, stop=stop, shape=shape, replicas=replicas)


def _own_experts(shape: tuple[int, ...], local: range) -> Iterator[Block]:
    runs = [(local.start, local.stop)] if local.step == 1 else [(id, id + 1) for id in local]
    for start, stop in runs:
        if stop > start:
            yield _block("", shape, 0, start, stop, 1)


def _block(
    part: str, shape: tuple[int, ...], dim: int, start: int, stop: int, replicas: int
) -> Block:
    own = (*shape[:dim], stop - start, *shape[dim + 1 :])
    return Block(part=part, dim=dim, start=start, stop=stop, shape=own, replicas=replicas)


def _weight_blocks(
    tensor: Named, shape: tuple[int, ...], facts: ModelFacts, degrees: Degrees, place: Place
) -> Iterator[Block]:
    """The blocks of a weight of that shape: of `tensor`, or of the one that it follows."""
    rule, name = tensor.rule, shown(tensor.weight.name)
    dim = rule.in_dim if rule.cut == "row" else rule.out_dim
    if len(shape) <= dim:
        raise PlanError(
            f"{name}: expected at least {dim + 1} dimensions for the rule {rule.cut!r}, "
            f"found shape {list(shape)}"
        )
    size = shape[dim]
    if rule.cut == "vocab":
        yield _vocabulary(name, shape, facts, degrees, place)
        return
    if rule.cut == "heads":
        for part, start, stop, count in _sections(rule.parts, size, name, facts):
            yield _heads(part, name, shape, start, stop, count, degrees, place)
        return
    ways, index = degrees.tp, place.tp
    if rule.experts:  # without EP, tensor parallelism of experts spans the data-parallel ranks
        ways, index = degrees.expert_ways, place.dp * degrees.tp + place.tp
    replicas = degrees.expert_ways // ways
    parts = rule.parts or ("",)
    section = _divided(size, len(parts), f"{name}: {size} rows", f"{len(parts)} parts")
    for number, part in enumerate(parts):
        what = f"{name}: {section} {'columns' if rule.cut == 'row' else 'rows'}"
        share = _divided(section, ways, what, _ways(ways, degrees, rule.experts))
        start = number * section + index * share
        yield _block(part, shape, dim, start, start + share, replicas)


def _ways(ways: int, degrees: Degrees, experts: bool) -> str:
    if experts and degrees.dp > 1:
        return f"tp {degrees.tp} x dp {degrees.dp} = {ways}"
    return f"tp {ways}"


def _divided(size: int, ways: int, what: str, by: str) -> int:
    if size % ways:
        raise IndivisibleError(f"{what} can't be divided by {by}; engines refuse it too")
    return size // ways


def _sections(
    parts: tuple[str, ...], size: int, name: str, facts: ModelFacts
) -> Iterator[tuple[str, int, int, int]]:
    """Part, first row, end and number of heads, for the parts that a tensor holds below each
    other."""
    counts = [needed(facts, "heads" if part == "q" else "kv_heads") for part in parts]
    total = sum(counts)
    if size % total:
        raise IndivisibleError(
            f"{name}: {size} rows can't be divided by {' + '.join(map(str, counts))} heads "
            f"({', '.join(parts)}; config.json's num_attention_heads and num_key_value_heads)"
        )
    start = 0
    for part, count in zip(parts, counts, strict=True):
        stop = start + count * (size // total)
        yield part, start, stop, count
        start = stop


def _heads(
    part: str,
    name: str,
    shape: tuple[int, ...],
    start: int,
    stop: int,
    count: int,
    degrees: Degrees,
    place: Place,
) -> Block:
    tp, rows = degrees.tp, (stop - start) // count
    if part != "q" and count < tp:  # fewer than ranks: each is kept by several
        each = _divided(tp, count, f"{name}: tp {tp}", f"{count} key/value heads")
        first = start + place.tp // each * rows
        return _block(part, shape, 0, first, first + rows, degrees.dp * each)
    kind = "attention heads" if part == "q" else "key/value heads"
    share = _divided(count, tp, f"{name}: {count} {kind}", f"tp {tp}") * rows
    first = start + place.tp * share
    return _block(part, shape, 0, first, first + share, degrees.dp)


def _vocabulary(
    name: str, shape: tuple[int, ...], facts: ModelFacts, degrees: Degrees, place: Place
) -> Block:
    rows = shape[0]
    if facts.vocab is not None and facts.vocab != rows:
        raise PlanError(
            f"{name}: {rows} rows, but config.json's vocab_size is {facts.vocab}; engines refuse it"
        )
    padded = -(-rows // VOCAB_PADDING) * VOCAB_PADDING
    what = f"{name}: {rows} rows, padded to {padded} (a multiple of {VOCAB_PADDING}),"
    share = _divided(padded, degrees.tp, what, f"tp {degrees.tp}")
    start, stop = (min(rank * share, rows) for rank in (place.tp, place.tp + 1))
    block = _block("", shape, 0, start, stop, degrees.dp)
    return replace(block, allocated=share)


def _steps(tensor: Named, quantisation: Quantisation | None) -> tuple[int | None, ...]:
    """For each dimension of the weight, how many of its elements share one of the tensor's; None
    where all of them do, or where the tensor lacks that dimension."""
    weight, shape = tensor.weight.shape, tensor.spec.shape
    block = quantisation.block if quantisation else None
    if block is not None and len(weight) >= 2 and tensor.attribute.startswith("weight_scale"):
        tiled = (*weight[:-2], -(-weight[-2] // block[0]), -(-weight[-1] // block[1]))
        if shape == tiled:
            return (*(1 for _ in weight[:-2]), *block)
    steps: list[int | None] = []
    for size, mine in zip(weight, (*shape, *(1 for _ in weight)), strict=False):
        group = quantisation.group if quantisation else None
        if mine == size:
            steps.append(1)
        elif mine == 1:
            steps.append(None)
        elif mine and size % mine == 0:
            steps.append(size // mine)
        elif mine and group and -(-size // group) == mine:
            steps.append(group)
        else:
            raise PlanError(
                f"{shown(tensor.spec.name)}: shape {list(shape)} doesn't follow that of its "
                f"weight, {list(weight)}: {mine} for {size}"
            )
    return tuple(steps)


def _follow(cut: Block, tensor: Named, steps: tuple[int | None, ...]) -> Block | None:
    """The block of a bias or scale that goes with a block of its weight; None for all of it."""
    shape, size = tensor.spec.shape, tensor.weight.shape[cut.dim]
    step = steps[cut.dim]
    if step is None or cut.dim >= len(shape):
        return None
    if step == 1:
        block = _block(cut.part, shape, cut.dim, cut.start, cut.stop, cut.replicas)
        return replace(block, allocated=cut.allocated)
    if cut.start % step or (cut.stop % step and cut.stop != size):
        raise IndivisibleError(
            f"{shown(tensor.spec.name)}: one rank's share of the weight, {cut.stop - cut.start} of "
            f"{size}, isn't divisible by the {step} that share a scale; engines refuse it too"
        )
    start, stop = cut.start // step, -(-cut.stop // step)
    return _block(cut.part, shape, cut.dim, start, stop, cut.replicas)
