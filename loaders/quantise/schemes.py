"""The ways to quantise a weight, by name. Values and shapes alone; nothing here computes.

A rule is arithmetic: how a scale follows from the largest magnitude, and how a value follows from
its scale. A scheme is a rule with a granularity (what shares one scale) and what the engine is told
to do with activations. Two rules of the same formula are two rules where they round differently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

BLOCK: Final = 128
"""Rows and columns of a block; the last of each direction may be smaller."""

Granularity = Literal["tensor", "channel", "block"]
Stored = Literal["int8", "float8_e4m3fn"]
WEIGHT_DTYPES: Final = ("bfloat16", "float16", "float32")
"""What can be quantised, by torch's names."""


class SchemeError(ValueError):
    """No scheme is named so; the text lists those that there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Symmetric: scale = absmax / divisor, value = round(weight / scale) within [low, high].

    `precision` is the dtype in which both divisions round: the weight's own, or float32 for all.
    A scale of 0 (a row of zeros, or one so small that the division underflows) becomes
    finfo(dtype).eps or 1, and its values 0. Values are rounded half to even.
    """

    name: str
    stored: Stored
    divisor: float
    low: float
    high: float
    precision: Literal["weight", "float32"]
    zero_scale: Literal["eps", "one"]
    source: str


CT_INT8: Final = Rule(
    name="ct-absmax127.5",
    stored="int8",
    divisor=127.5,
    low=-128,
    high=127,
    precision="weight",
    zero_scale="eps",
    source="compressed-tensors 0.20, calculate_qparams and quantize",
)
INT8: Final = Rule(
    name="absmax127",
    stored="int8",
    divisor=127,
    low=-127,
    high=127,
    precision="float32",
    zero_scale="one",
    source="vLLM 0.33 int8_per_channel_weight_only and msModelSlim; scales of 0 are ours",
)
CT_FP8: Final = Rule(
    name="ct-absmax448",
    stored="float8_e4m3fn",
    divisor=448,
    low=-448,
    high=448,
    precision="weight",
    zero_scale="eps",
    source="compressed-tensors 0.20, calculate_qparams and quantize",
)
FP8: Final = Rule(
    name="absmax448",
    stored="float8_e4m3fn",
    divisor=448,
    low=-448,
    high=448,
    precision="float32",
    zero_scale="one",
    source="vLLM 0.33 online fp8 and DeepSeek-V3; scales of 0 are ours",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """A rule, what shares a scale, and what an engine does with activations: 8 bits per token or
    per group of 128, each with a scale of that moment, or nothing (weight only)."""

    name: str
    rule: Rule
    granularity: Granularity
    activations: Literal["token", "group", "none"]


def _rows() -> tuple[Scheme, ...]:
    table: tuple[tuple[str, Rule, Granularity, Literal["token", "group", "none"]], ...] = (
        ("int8-channel", CT_INT8, "channel", "token"),
        ("int8-tensor", CT_INT8, "tensor", "token"),
        ("int8-weight-only", CT_INT8, "channel", "none"),
        ("fp8-channel", CT_FP8, "channel", "token"),
        ("fp8-tensor", CT_FP8, "tensor", "token"),
        ("fp8-block", CT_FP8, "block", "group"),
        ("int8-channel-127", INT8, "channel", "token"),
        ("int8-tensor-127", INT8, "tensor", "token"),
        ("int8-weight-only-127", INT8, "channel", "none"),
        ("fp8-channel-fp32", FP8, "channel", "token"),
        ("fp8-tensor-fp32", FP8, "tensor", "token"),
        ("fp8-block-fp32", FP8, "block", "group"),
    )
    return tuple(
        Scheme(name=name, rule=rule, granularity=granularity, activations=activations)
        for name, rule, granularity, activations in table
    )


SCHEMES: Final = {scheme.name: scheme for scheme in _rows()}


def scheme(name: str) -> Scheme:
    """The scheme of that name. SchemeError if there is none."""
    found = SCHEMES.get(name)
    if found is None:
        raise SchemeError(f"no scheme is named {name!r}; there are: {', '.join(SCHEMES)}")
    return found


def scale_shape(shape: tuple[int, ...], granularity: Granularity) -> tuple[int, ...]:
    """The shape of the scales of a weight [out, in], as checkpoints store them: [1] per tensor,
    [out, 1] per channel, [ceil(out / 128), ceil(in / 128)] per block. ValueError unless 2-D."""
    if len(shape) != 2:
        raise ValueError(f"expected a weight of 2 dimensions [out, in], found shape {shape}")
    rows, columns = shape
    if granularity == "tensor":
        return (1,)
    if granularity == "channel":
        return (rows, 1)
    return (-(-rows // BLOCK), -(-columns // BLOCK))


def scale_dtype(scheme: Scheme, weight_dtype: str) -> str:
    """The dtype of the scales, by torch's name, for a weight of that dtype."""
    return weight_dtype if scheme.rule.precision == "weight" else "float32"
