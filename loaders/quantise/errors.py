"""What quantising cost in precision, so that a faster but broken quantiser isn't progress."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from loaders.quantise.reference import expanded, granularity_of

_BAND = 1 << 22  # elements that are compared at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantiseLoss:
    """`relative_error` is |weight - dequantised| / |weight| (Frobenius norms), over everything;
    `worst_channel` is the row in which that ratio is largest, `worst_error` the ratio there. 0 for
    weights that are all 0; infinite where a row of zeros didn't stay one."""

    relative_error: float
    worst_channel: int | None
    worst_error: float


def loss(weight: torch.Tensor, values: torch.Tensor, scale: torch.Tensor) -> QuantiseLoss:
    """Compares [out, in] weights with their quantised values in float32, a band of rows at a time.
    QuantiseError if the scale's shape fits neither."""
    granularity = granularity_of(tuple(values.shape), tuple(scale.shape))
    rows = max(1, _BAND // max(1, weight.shape[1]))
    wide = expanded(scale.float(), values.shape, granularity)
    lost, whole = [torch.zeros(0)], [torch.zeros(0)]
    for start in range(0, weight.shape[0], rows):
        band = slice(start, start + rows)
        factors = wide if granularity == "tensor" else wide[band]
        exact = weight[band].float()
        lost.append((values[band].float() * factors - exact).square().sum(dim=1).cpu())
        whole.append(exact.square().sum(dim=1).cpu())
    lost_rows, whole_rows = torch.cat(lost).double(), torch.cat(whole).double()
    ratios = torch.where(lost_rows == 0, 0.0, lost_rows / whole_rows).sqrt()
    worst = int(ratios.argmax()) if ratios.numel() else None
    return QuantiseLoss(
        relative_error=_ratio(float(lost_rows.sum()), float(whole_rows.sum())),
        worst_channel=worst,
        worst_error=float(ratios[worst]) if worst is not None else 0.0,
    )


def _ratio(lost: float, whole: float) -> float:
    if lost == 0:
        return 0.0
    return math.sqrt(lost / whole) if whole else math.inf
