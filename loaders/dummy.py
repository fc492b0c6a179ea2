"""Weights that are made up: what loading costs when no file is read."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from loaders.checkpoint.manifest import Checkpoint
from loaders.contract import Loader, Stamp
from loaders.io.tensors import dtype_of
from loaders.registry import register

_SEED = 1234
_E8M0_ONE = 127  # the exponent byte of a scale of 1.0


@register
class Dummy(Loader):
    """Filled as the engines do for `--load-format dummy` (vLLM 0.33, weight_utils): the generator
    is seeded anew for each tensor, so its values depend on its dtype and size alone."""

    name = "dummy"
    summary = "random values, no file opened: the floor under the later phases"
    formats = frozenset()
    ownership = "owned"
    synthetic = True

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[tuple[str, torch.Tensor]]:
        for spec in checkpoint.tensors:
            dtype = dtype_of(spec)
            with stamp("allocate"):
                tensor = torch.empty(spec.shape, dtype=dtype)
            fill(tensor)
            yield spec.name, tensor


def fill(tensor: torch.Tensor) -> None:
    """In place: floats uniform in +-1e-3, 8-bit floats in +-1 (by way of fp16), int8 and bytes
    random over their range, exponent-only scales 1; other kinds, which the engine leaves as they
    are, 0. A contiguous CPU tensor of any shape."""
    random = torch.Generator().manual_seed(_SEED)
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.numel() == 0:
        return
    if name.startswith("float8_e8m0"):
        tensor.view(torch.uint8).fill_(_E8M0_ONE)
    elif name.startswith("float4") or tensor.dtype is torch.uint8:
        tensor.view(torch.uint8).random_(0, 256, generator=random)
    elif name.startswith("float8"):
        wide = torch.empty(tensor.shape, dtype=torch.float16)
        tensor.copy_(wide.uniform_(-1, 1, generator=random))
    elif tensor.is_floating_point():
        tensor.uniform_(-1e-3, 1e-3, generator=random)
    elif tensor.dtype is torch.int8:
        tensor.random_(-128, 128, generator=random)
    else:
        tensor.zero_()
