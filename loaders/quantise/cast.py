"""From one floating dtype to a narrower one, without losing a value unnoticed."""

from __future__ import annotations

import torch

from loaders.quantise.faults import CastOverflowError


def cast(tensor: torch.Tensor, dtype: torch.dtype, *, name: str) -> torch.Tensor:
    """`tensor` in `dtype`, a floating one. CastOverflowError if a finite value becomes infinite, as
    bfloat16 beyond 65504 does in float16. Values too small for `dtype` become 0 or subnormal."""
    if dtype == tensor.dtype:
        return tensor
    if torch.finfo(dtype).max >= torch.finfo(tensor.dtype).max:
        return tensor.to(dtype)
    narrow = tensor.to(dtype)
    overflowed = torch.isfinite(tensor) & ~torch.isfinite(narrow)
    if bool(overflowed.any()):
        largest = tensor[overflowed].abs().max().item()
        raise CastOverflowError(name, int(overflowed.sum()), largest, dtype)
    return narrow
