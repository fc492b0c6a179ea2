"""The engines' default: each file is mapped, each tensor a view; bytes come by page faults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from safetensors import safe_open

from loaders.checkpoint.manifest import Checkpoint
from loaders.contract import Loader, Stamp
from loaders.io.errors import naming
from loaders.io.tensors import require_dtypes
from loaders.registry import register


def map_tensors(checkpoint: Checkpoint, stamp: Stamp) -> Iterator[tuple[str, torch.Tensor]]:
    """safe_open per file, get_tensor per key in the library's order, which is alphabetical and not
    that of the offsets (vLLM 0.33, weight_utils). No weight is read here: whoever touches a tensor
    faults its pages in. LoadError names file and tensor."""
    require_dtypes(checkpoint)
    for file in checkpoint.files:
        with stamp("open"), naming(file.path):
            opened: Any = safe_open(file.path, framework="pt")  # its stubs are untyped
        with opened:
            with stamp("open"):
                names = opened.keys()
            for name in names:
                with stamp("open"), naming(file.path, name):
                    tensor = opened.get_tensor(name)
                yield name, tensor


@register
class SafetensorsMmap(Loader):
    name = "safetensors-mmap"
    summary = "lazy mapping, tensor by tensor (safe_open, get_tensor): the engines' default"
    formats = frozenset({"safetensors"})
    ownership = "mapped"
    requires = ("safetensors",)

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[tuple[str, torch.Tensor]]:
        return map_tensors(checkpoint, stamp)
