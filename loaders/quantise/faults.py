"""What can be wrong with a weight that is to be quantised. Each text names the tensor."""

from __future__ import annotations

import torch

from loaders.checkpoint.text import count, quoted


class QuantiseError(Exception):
    """A tensor can't be quantised, dequantised or cast; the text says which, where and why."""


class NonFiniteError(QuantiseError):
    """NaN or infinite values. `nans` and `infs` count them, `row` is the first with one."""

    def __init__(self, name: str, weight: torch.Tensor) -> None:
        self.name = name
        self.nans = int(torch.isnan(weight).sum())
        self.infs = int(torch.isinf(weight).sum())
        bad = ~torch.isfinite(weight).reshape(weight.shape[0], -1).all(dim=1)
        self.row = int(bad.nonzero()[0])
        super().__init__(
            f"{quoted(name)}: expected finite weights, found {self.nans:,} NaN and {self.infs:,} "
            f"infinite of {weight.numel():,}, in {count(int(bad.sum()), 'row')}, the first "
            f"{self.row}; "
            "the checkpoint is damaged: download it again, or leave this tensor as it is"
        )


class BadScaleError(QuantiseError):
    """A scale that no quantiser writes: NaN, infinite, zero or negative."""


class CastOverflowError(QuantiseError):
    """Finite values that the other dtype can't hold. `overflowed` counts them."""

    def __init__(self, name: str, overflowed: int, largest: float, dtype: torch.dtype) -> None:
        self.name, self.overflowed = name, overflowed
        super().__init__(
            f"{quoted(name)}: {count(overflowed, 'value')} beyond the range of {dtype} (it ends at "
            f"{torch.finfo(dtype).max:g}, the largest here is {largest:g}) would become infinite; "
            "load in bfloat16 or float32"
        )


def check_scale(scale: torch.Tensor, name: str) -> None:
    """BadScaleError, with counts, unless all scales are finite and above 0."""
    bad = ~(torch.isfinite(scale) & (scale > 0))
    if bool(bad.any()):
        first = scale[bad].reshape(-1)[0].item()
        raise BadScaleError(
            f"{quoted(name)}: expected finite scales above 0, found {int(bad.sum()):,} others of "
            f"{scale.numel():,}, the first {first:g}; the checkpoint is damaged: download it again"
        )
