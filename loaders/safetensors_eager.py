"""The engines' `eager` strategy: the whole file into one bytes object, then parsed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load

from loaders.checkpoint.dtypes import BY_CODE
from loaders.checkpoint.manifest import Checkpoint, WeightFile
from loaders.contract import Loader, Stamp
from loaders.io.errors import LoadError, TruncatedError, naming
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

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[tuple[str, torch.Tensor]]:
        require_dtypes(checkpoint)
        for file in checkpoint.files:
            with naming(file.path):
                data = Path(file.path).read_bytes()
            if len(data) < file.size:
                raise TruncatedError(file.path, expected=file.size, found=len(data))
            with stamp("open"):
                tensors = _parse(data, file, checkpoint)
            del data
            while tensors:
                name = next(iter(tensors))
                yield name, tensors.pop(name)


def _parse(data: bytes, file: WeightFile, checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """load(), whose table of dtypes is shorter than the mapping's (safetensors 0.8: no F4, no
    F8_E8M0) and which then raises a KeyError of the bare code: here with a tensor's name."""
    try:
        with naming(file.path):
            return load(data)
    except LoadError as error:
        lacking = BY_CODE.get(str(error.__cause__).strip("'"))
        if not isinstance(error.__cause__, KeyError) or lacking is None:
            raise
        spec = next(
            spec
            for spec in checkpoint.tensors
            if spec.file == file.name and spec.dtype == lacking.name
        )
        raise LoadError(
            f"{file.path}: tensor {spec.name!r} is {spec.dtype}, which safetensors.torch.load "
            "doesn't know; safetensors-mmap and parallel may"
        ) from error
