"""What each rule does, in plain torch: the definition that the fast way is compared with.

Weights are [out, in], bfloat16, float16 or float32, on any device. The temporaries are as large as
the weight; see loaders/quantise/fast.py for a way without them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from loaders.quantise.cast import cast
from loaders.quantise.faults import NonFiniteError, QuantiseError, check_scale
from loaders.quantise.schemes import (
    BLOCK,
    WEIGHT_DTYPES,
    Granularity,
    Rule,
    Scheme,
    scale_shape,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Scales that a rule replaced: `zero` because everything under them is 0, `underflowed`
    because the largest magnitude is too small for the rule (its values become 0, or nearly)."""

    zero: int = 0
    underflowed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Quantised:
    """`values` [out, in] int8 or float8_e4m3fn; `scale` of schemes.scale_shape, in the weight's
    dtype or float32 as the rule says."""

    values: torch.Tensor
    scale: torch.Tensor
    counts: Counts


def quantise(weight: torch.Tensor, scheme: Scheme, *, name: str = "weight") -> Quantised:
    """Quantises by definition. NonFiniteError for NaN or infinity, QuantiseError for a weight that
    isn't 2-D or of another dtype; both say `name`."""
    check_weight(weight, name)
    rule = scheme.rule
    largest = absmax(weight, scheme.granularity)
    if not bool(torch.isfinite(largest).all()):
        raise NonFiniteError(name, weight)
    scale, counts = scales(largest, rule)
    exact = weight if rule.precision == "weight" else weight.float()
    values = exact / expanded(scale, weight.shape, scheme.granularity)
    return Quantised(values=stored(values, rule), scale=scale, counts=counts)


def dequantise(
    values: torch.Tensor,
    scale: torch.Tensor,
    dtype: torch.dtype | None = None,
    *,
    name: str = "weight",
) -> torch.Tensor:
    """values * scale, computed in the scale's dtype, as compressed-tensors does, then cast to
    `dtype` if given.

    The scale's shape says what shares one: [] or [1] per tensor, [out, 1] per channel, else 128 x
    128 blocks. BadScaleError for a scale that is NaN, infinite, 0 or negative; CastOverflowError
    for values that `dtype` can't hold; QuantiseError for a scale of another shape.
    """
    check_scale(scale, name)
    granularity = granularity_of(tuple(values.shape), tuple(scale.shape), name)
    weight = values.to(scale.dtype) * expanded(scale, values.shape, granularity)
    return weight if dtype is None else cast(weight, dtype, name=name)


def check_weight(weight: torch.Tensor, name: str) -> None:
    """QuantiseError unless 2-D and of a dtype that can be quantised."""
    dtype = str(weight.dtype).removeprefix("torch.")
    if dtype not in WEIGHT_DTYPES:
        raise QuantiseError(
            f"{name}: expected a weight of {', '.join(WEIGHT_DTYPES)}, found {dtype}"
        )
    if weight.ndim != 2:
        raise QuantiseError(
            f"{name}: expected a weight of 2 dimensions [out, in], found {tuple(weight.shape)}"
        )


def absmax(weight: torch.Tensor, granularity: Granularity) -> torch.Tensor:
    """The largest magnitude under each scale, in the weight's dtype; 0 where there is nothing."""
    shape = scale_shape(tuple(weight.shape), granularity)
    if weight.numel() == 0:
        return weight.new_zeros(shape)
    if granularity == "tensor":
        return weight.abs().amax().reshape(1)
    if granularity == "channel":
        return weight.abs().amax(dim=1, keepdim=True)
    rows, columns = shape
    down, right = rows * BLOCK - weight.shape[0], columns * BLOCK - weight.shape[1]
    padded = torch.nn.functional.pad(weight.abs(), (0, right, 0, down))
    return padded.reshape(rows, BLOCK, columns, BLOCK).amax(dim=(1, 3))


def scales(largest: torch.Tensor, rule: Rule) -> tuple[torch.Tensor, Counts]:
    """The scales for those magnitudes, in the dtype that the rule computes in, and what it had to
    replace."""
    exact = largest if rule.precision == "weight" else largest.float()
    scale = exact / rule.divisor
    nothing = scale == 0
    replaced = int(nothing.sum())
    if replaced:
        zero = int((largest == 0).sum())
        scale = torch.where(nothing, zero_scale(rule, scale.dtype), scale)
        return scale, Counts(zero=zero, underflowed=replaced - zero)
    return scale, Counts()


def zero_scale(rule: Rule, dtype: torch.dtype) -> float:
    """What stands for a scale of 0."""
    return torch.finfo(dtype).eps if rule.zero_scale == "eps" else 1.0


def stored(quotients: torch.Tensor, rule: Rule) -> torch.Tensor:
    """Quotients as they are stored: clamped first, so that nothing becomes the NaN byte of e4m3 or
    wraps around, then rounded half to even."""
    clamped = quotients.clamp(rule.low, rule.high)
    if rule.stored == "float8_e4m3fn":
        return clamped.to(torch.float8_e4m3fn)
    return clamped.round().to(torch.int8)


def expanded(
    scale: torch.Tensor, shape: torch.Size | tuple[int, ...], granularity: Granularity
) -> torch.Tensor:
    """The scales so that they broadcast against a weight of that shape."""
    if granularity == "tensor":
        return scale.reshape(1, 1)
    if granularity == "channel":
        return scale
    wide = scale.repeat_interleave(BLOCK, dim=0)[: shape[0]]
    return wide.repeat_interleave(BLOCK, dim=1)[:, : shape[1]]


def granularity_of(
    shape: tuple[int, ...], scale: tuple[int, ...], name: str = "weight"
) -> Granularity:
    """What scales of that shape belong to. QuantiseError if to nothing known."""
    if scale in ((), (1,), (1, 1)) and scale != scale_shape(shape, "channel"):
        return "tensor"
    if scale == scale_shape(shape, "channel"):
        return "channel"
    if scale == scale_shape(shape, "block"):
        return "block"
    raise QuantiseError(
        f"{name}: scales of shape {scale} fit no weight of shape {shape}: expected [1], "
        f"{list(scale_shape(shape, 'channel'))} or {list(scale_shape(shape, 'block'))}"
    )
