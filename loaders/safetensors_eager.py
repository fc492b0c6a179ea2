"""The engines' `eager` strategy: the whole file into one bytes object, then parsed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import safetensors.torch
import torch

from loaders.checkpoint.manifest import Checkpoint
from loaders.contract import Loader, Stamp
from loaders.io.errors import LoadError, TruncatedError, naming
from loaders.io.library import unknown_code
from loaders.io.tensors import require_dtypes
from loaders.registry import register


@register
class SafetensorsEager(Loader):
    name = "safetensors-eager"
    summary = "reads each file into one bytes object and parses that (load strategy `eager`)"
    formats = frozenset({"safetensors"})
    ownership = "owned"
    requires = ("safetensors",)

    def memory_bytes(self, checkpoint: Checkpoint) -> int:
        """The library copies every tensor out of the bytes object, which is there meanwhile."""
        largest = max((file.size for file in checkpoint.files), default=0)
        return checkpoint.tensor_bytes + largest

    def refuses(self, checkpoint: Checkpoint) -> str | None:
        """Its table of dtypes is shorter than the mapping's (safetensors 0.8: no F4, no F8_E8M0)
        and ends in a KeyError of the bare code."""
        known = getattr(safetensors.torch, "_TYPES", None)  # private: it may go
        return unknown_code(checkpoint, known, "safetensors.torch.load") if known else None

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[tuple[str, torch.Tensor]]:
        require_dtypes(checkpoint)
        if (reason := self.refuses(checkpoint)) is not None:
            raise LoadError(reason)
        for file in checkpoint.files:
            with naming(file.path):
                data = Path(file.path).read_bytes()
            if len(data) < file.size:
                raise TruncatedError(file.path, expected=file.size, found=len(data))
            with stamp("open"), naming(file.path):
                tensors = safetensors.torch.load(data)
            del data
            while tensors:
                name = next(iter(tensors))
                yield name, tensors.pop(name)
