"""A shape scaled down to a size: fewer layers first, then fewer experts, then less width.

As long as fewer layers and experts suffice, tensors keep their published sizes, because loading
time depends on them; only the feed-forward width and the vocabulary are shaved a little to meet the
size. Width shrinks all of `WIDTHS` together, so that embeddings and layers keep their proportion.
Head dimensions never change, nor does the ratio of heads to key-value heads.

Dims that are changed, by name: layers, dense_layers, mtp, experts (with active_experts,
expert_groups, active_groups), heads and kv_heads, and WIDTHS. All others stay.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bench.sizes import format_size
from bench.synth.shapes import FP8, Shape, tensor_bytes

# The narrowest each may become. 64 is the smallest multiple that the engines' quantised kernels and
# vocabulary padding work with (vLLM pads vocabularies to 64).
WIDTHS = {
    "hidden": 64,
    "intermediate": 64,
    "moe_intermediate": 64,
    "q_rank": 64,
    "kv_rank": 64,
    "vocab": 256,
}
_FULL = 4096  # widths and shares are counted in parts of this
_NEAR = 0.97  # a result from this fraction of the size up to the size is near enough
_CAP = 1.01  # a size up to this much over the published one means the published one


class ScaleError(ValueError):
    """A size that the shape can't have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Floors:
    """How far an attempt may go: the fewest layers of the kind that repeats, dense layers before
    them, MTP layers, experts and attention heads (eight, so that eight ranks can share them), and
    the smallest parts of the feed-forward width and of the vocabulary, as the width leaves them,
    that may be kept."""

    layers: int
    dense: int
    mtp: int
    experts: int
    feed_forward: float
    vocab: float
    heads: int


# From what still looks like the real thing to what is merely valid.
_ATTEMPTS = (
    _Floors(layers=4, dense=3, mtp=1, experts=16, feed_forward=0.5, vocab=0.5, heads=8),
    _Floors(layers=4, dense=3, mtp=1, experts=16, feed_forward=1, vocab=0.5, heads=8),
    _Floors(layers=2, dense=1, mtp=1, experts=8, feed_forward=0.25, vocab=0.25, heads=8),
    _Floors(layers=1, dense=1, mtp=1, experts=4, feed_forward=0, vocab=0, heads=8),
    _Floors(layers=1, dense=1, mtp=0, experts=2, feed_forward=0, vocab=0, heads=1),
    _Floors(
        layers=3, dense=1, mtp=0, experts=2, feed_forward=0, vocab=0, heads=1
    ),  # odd: fills other sizes
)


def scale(shape: Shape, size: int | None) -> Shape:
    """The shape with dims such that its tensors take at most `size` bytes, and nearly that.

    None, and a size up to 1 % above the published one, give the published shape. ScaleError for a
    larger size, and for one below the smallest valid shape.
    """
    full = tensor_bytes(shape)
    if size is None or full <= size <= full * _CAP:
        return shape
    if size > full:
        raise ScaleError(
            f"{shape.name} has {format_size(full)} ({full} bytes) of tensors in {_dtypes(shape)}, "
            f"which is less than the {format_size(size)} asked for; ask for that much at most, "
            "or take a larger shape"
        )
    found = [_attempt(shape, size, floors) for floors in _ATTEMPTS]
    fitting = [scaled for scaled in found if tensor_bytes(scaled) <= size]
    if not fitting:
        least = min(tensor_bytes(scaled) for scaled in found)
        raise ScaleError(
            f"{shape.name} in {_dtypes(shape)} can't be smaller than {format_size(least)} "
            f"({least} bytes), which is more than the {format_size(size)} asked for"
        )
    near = (scaled for scaled in fitting if tensor_bytes(scaled) >= _NEAR * size)
    return next(near, max(fitting, key=tensor_bytes))


def _dtypes(shape: Shape) -> str:
    return shape.dtype if shape.linear_dtype == shape.dtype else shape.linear_dtype


def _attempt(shape: Shape, size: int, floors: _Floors) -> Shape:
    """Goes through the levers, coarse ones first. Each takes its smallest value that reaches the
    size with all later levers up, if the later ones can shave off the excess; else the value
    below. Bytes grow with every lever, so that this is a search by halves."""
    levers = dict(_levers(shape.dims, floors))
    chosen = {name: min(options[-1], _FULL) for name, options in levers.items()}
    lowest = {name: options[0] for name, options in levers.items()}

    def scaled(**changed: int) -> Shape:
        return replace(shape, dims=_dims(shape, {**chosen, **changed}, floors))

    def reaches(name: str, value: int) -> bool:
        return tensor_bytes(scaled(**{name: value})) >= size

    for name, options in levers.items():
        del lowest[name]
        at = bisect_left(options, True, key=partial(reaches, name))
        at = min(at, len(options) - 1)
        if at > 0 and tensor_bytes(scaled(**lowest, **{name: options[at]})) > size:
            at -= 1
        chosen[name] = options[at]
    return scaled()


def _levers(dims: Mapping[str, int], floors: _Floors) -> Iterator[tuple[str, Sequence[int]]]:
    """What can be turned, coarse to fine, each with its values in ascending order."""
    dense = min(floors.dense, dims.get("dense_layers", 0))
    yield "layers", range(min(dense + floors.layers, dims["layers"]), dims["layers"] + 1)
    if "experts" in dims:
        yield "experts", _expert_counts(dims["experts"], floors.experts)
    yield "width", range(1, _FULL + 1)
    yield "feed_forward", range(max(1, round(floors.feed_forward * _FULL)), _FULL + 1)
    # The finest lever also fills what the others left over, where the width made it smaller.
    yield "vocab", range(max(1, round(floors.vocab * _FULL)), _FULL * 3 // 2)


def _expert_counts(published: int, floor: int) -> list[int]:
    """Counts that divide among 2, 4 and 8 ranks: multiples of 8, below that powers of two."""
    counts = {2, 4, *range(8, published, 8), published}
    return sorted(count for count in counts if min(floor, published // 2) <= count <= published)


def _dims(shape: Shape, choice: Mapping[str, int], floors: _Floors) -> dict[str, int]:
    """The dims for a choice of lever values, valid for the architecture."""
    dims, width = shape.dims, choice["width"]
    narrow = {"moe_intermediate" if "moe_intermediate" in dims else "intermediate": "feed_forward"}
    narrow["vocab"] = "vocab"
    scaled = {**dims, "layers": choice["layers"]}
    for name, floor in WIDTHS.items():
        if name in dims:
            part = width * choice[narrow[name]] // _FULL if name in narrow else width
            in_blocks = shape.linear_dtype == FP8 and name.endswith("intermediate")
            scaled[name] = min(dims[name], max(floor, _rounded(dims[name], part, in_blocks)))
    for _ in range((_FULL // width).bit_length() - 1):
        # Halved in pairs, so that the ratio stays and powers of two of ranks still divide them.
        even = scaled["kv_heads"] % 2 == 0 and scaled["heads"] % 2 == 0
        if even and scaled["heads"] >= 2 * floors.heads:
            scaled["heads"] //= 2
            scaled["kv_heads"] //= 2
    if "dense_layers" in dims and scaled["layers"] < dims["layers"]:
        scaled["dense_layers"] = min(floors.dense, dims["dense_layers"])
        scaled["mtp"] = min(floors.mtp, dims["mtp"])
    if "experts" in dims:
        scaled |= _routing(dims, choice["experts"])
    return scaled


def _rounded(value: int, part: int, in_blocks: bool) -> int:
    """`value` times part/_FULL, to the nearest multiple of 64, of 128 from 1024 on, of 256 from
    4096 on. In fp8 blocks of 128 the feed-forward width goes by 512 where it is wide enough, since
    engines refuse a shard that cuts a block: 4 ranks can share it."""
    exact = value * part / _FULL
    if in_blocks:
        multiple = 512 if exact >= 512 else 128
    else:
        multiple = 64 if exact < 1024 else 128 if exact < 4096 else 256
    return int(exact / multiple + 0.5) * multiple


def _routing(dims: Mapping[str, int], experts: int) -> dict[str, int]:
    """The router's numbers for so many experts. Source for the groups: DeepSeek-V3's noaux_tc,
    which ranks groups by the sum of their two best experts and so needs two in each."""
    routing = {"experts": experts, "active_experts": min(dims["active_experts"], experts // 2)}
    if "expert_groups" in dims and experts < 2 * dims["expert_groups"]:
        routing |= {"expert_groups": 1, "active_groups": 1}
    return routing
