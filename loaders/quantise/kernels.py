"""The loops over elements that are worth compiling, and whether this host can compile them.

torch.compile makes C++ for the CPU and Triton for CUDA out of the same functions. They leave the
scales' arithmetic to the reference and only repeat what touches every element, in an order in which
the compiler keeps one row in cache: read it, find its largest magnitude, quantise it.

Every kernel has a code object of its own, since torch counts recompilations for each, and is
compiled for symbolic shapes, so that a second shape compiles nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

import torch

from loaders.quantise.reference import zero_scale
from loaders.quantise.schemes import Rule

Kernel = Callable[..., Any]
# Rounding to the weight's dtype between two operations is part of a rule, not a waste.
_OPTIONS: Final[dict[str, str | int | bool | Callable[..., Any]]] = {
    "emulate_precision_casts": True
}


def no_compiler(device: torch.device) -> str | None:
    """Why nothing can be compiled for that device; None if it seems possible."""
    if device.type != "cpu":
        return None
    given = os.environ.get("CXX")
    if any(shutil.which(name) for name in ([given] if given else ["g++", "clang++"])):
        return None
    return f"there is no C++ compiler ({given or 'g++ or clang++'}) on this host"


def fused(rule: Rule, dtype: torch.dtype) -> Kernel:
    """`f(weight, values) -> absmax`: quantises [out, in] per channel into `values` and returns
    the largest magnitudes [out, 1], float32."""
    quantised = _quantised(rule, dtype)
    narrow, divisor = dtype if rule.precision == "weight" else torch.float32, rule.divisor
    zero = zero_scale(rule, narrow)

    def kernel(weight: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        exact = weight.float()
        largest = exact.abs().amax(1, keepdim=True)
        scale = (largest / divisor).to(narrow).float()
        scale = torch.where(scale == 0, zero, scale)
        values.copy_(quantised(exact, scale))
        return largest

    return _compiled(kernel, f"fused_{rule.stored}")


def largest_of(rule: Rule) -> Kernel:
    """`f(weight) -> absmax`: of [out, groups, elements] the largest magnitudes [out, groups],
    float32."""

    def kernel(weight: torch.Tensor) -> torch.Tensor:
        return weight.float().abs().amax(2)

    return _compiled(kernel, f"largest_{rule.stored}")


def divided(rule: Rule, dtype: torch.dtype) -> Kernel:
    """`f(weight, values, scale)`: quantises [out, groups, elements] into `values` with scales
    [out, groups]."""
    quantised = _quantised(rule, dtype)

    def kernel(weight: torch.Tensor, values: torch.Tensor, scale: torch.Tensor) -> None:
        values.copy_(quantised(weight.float(), scale.float().unsqueeze(2)))

    return _compiled(kernel, f"divided_{rule.stored}")


def _quantised(
    rule: Rule, dtype: torch.dtype
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """reference.stored(weight / scale), in float32 but for the roundings, for scales that are
    normal numbers: then |weight / scale| is at most the divisor and two roundings, so only 127.5
    has room to be rounded up from, and nothing else needs clamping."""
    narrow = dtype if rule.precision == "weight" else torch.float32
    most = rule.high if rule.divisor > rule.high else None
    whole = rule.stored == "int8"
    # A bfloat16 quotient comes out the same from the reciprocal, a cheaper operation. Both have 8
    # significant bits, so no quotient lies closer than 2^-17 of itself to where rounding changes,
    # and none lies there; a float32 product with a float32 reciprocal is off by 2^-23 at most.
    reciprocal = narrow == torch.bfloat16

    def quantised(exact: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        quotients = exact * (1 / scale) if reciprocal else exact / scale
        if reciprocal and exact.device.type == "cpu":
            rounded = to_eight_bits(quotients)
        else:
            rounded = quotients.to(narrow).float()
        clamped = rounded if most is None else rounded.clamp(max=most)
        # Left in float32: copying into the values casts. A cast of its own would have the compiler
        # write the row twice.
        return clamped.round() if whole else clamped

    return quantised


def to_eight_bits(quotients: torch.Tensor) -> torch.Tensor:
    """float32 rounded to the 8 significant bits of bfloat16, in place of a cast there and back,
    which has no instruction of its own on most CPUs (Veltkamp's splitting, Dekker 1971). Halfway
    cases may go either way; magnitudes from 2^-100 to 2^100."""
    spread = quotients * 65537.0  # 2^16 + 1: 24 significant bits less 8
    return spread - (spread - quotients)


def _compiled(function: FunctionType | Kernel, name: str) -> Kernel:
    assert isinstance(function, FunctionType)
    code = function.__code__.replace(co_name=name)
    own = FunctionType(code, function.__globals__, name, None, function.__closure__)
    compiled: Kernel = torch.compile(own, dynamic=True, fullgraph=True, options=_OPTIONS)
    return compiled
