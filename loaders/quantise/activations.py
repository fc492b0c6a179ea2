"""Static activation scales: read from the checkpoint, never invented.

They come from calibration with real inputs, which no loader has. Where a layer needs one and the
file has none, that is an error, not a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from loaders.quantise.faults import QuantiseError, check_scale


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StaticActivation:
    """One layer's `scale` [1] and `offset` [1] (None where it is symmetric)."""

    scale: torch.Tensor
    offset: torch.Tensor | None


def static_activation(tensors: Mapping[str, torch.Tensor], layer: str) -> StaticActivation:
    """The static activation scale of `layer` ("model.layers.0.mlp.up_proj") among its tensors:
    `input_scale` with compressed-tensors' `input_zero_point` or Ascend's `input_offset`, [] or [1].
    QuantiseError if it isn't there or holds more than one value; BadScaleError."""
    scale = tensors.get(f"{layer}.input_scale")
    if scale is None:
        raise QuantiseError(
            f"{layer}: static activations need {layer}.input_scale, and the checkpoint has "
            "none; it can't be made up: calibrate again, or use a scheme with dynamic activations"
        )
    check_scale(scale, f"{layer}.input_scale")
    offset = tensors.get(f"{layer}.input_zero_point", tensors.get(f"{layer}.input_offset"))
    return StaticActivation(
        scale=_single(scale, f"{layer}.input_scale"),
        offset=None if offset is None else _single(offset, f"{layer}: the activations' offset"),
    )


def weight_scale_from(
    deq_scale: torch.Tensor, input_scale: torch.Tensor, *, layer: str
) -> torch.Tensor:
    """The weight's scales [out, 1] float32 of an Ascend W8A8 layer that stores their product with
    the input's instead: deq_scale = input_scale * weight_scale (vllm-ascend main 182b75ea).

    `deq_scale` [out] is float32, or int64 (float16 models) whose low 32 bits are that float32's.
    QuantiseError for another dtype; BadScaleError.
    """
    if deq_scale.dtype == torch.int64:
        words = deq_scale.contiguous().view(torch.int32).reshape(-1, 2)
        product = words[:, 0].contiguous().view(torch.float32)
    elif deq_scale.dtype == torch.float32:
        product = deq_scale.reshape(-1)
    else:
        raise QuantiseError(
            f"{layer}.deq_scale: expected float32 or int64, found {deq_scale.dtype}"
        )
    check_scale(product, f"{layer}.deq_scale")
    check_scale(input_scale, f"{layer}.input_scale")
    single = _single(input_scale, f"{layer}.input_scale")
    return (product / single.float()).reshape(-1, 1)


def _single(tensor: torch.Tensor, name: str) -> torch.Tensor:
    if tensor.numel() != 1:
        raise QuantiseError(f"{name}: expected one value, found shape {tuple(tensor.shape)}")
    return tensor.reshape(1)
