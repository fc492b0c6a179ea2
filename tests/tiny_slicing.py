"""Manifests for slice plans, made without any file."""

from __future__ import annotations

import math
from collections.abc import Mapping

from loaders.checkpoint.dtypes import itemsize
from loaders.checkpoint.manifest import Checkpoint, TensorSpec, WeightFile


def manifest_of(tensors: Mapping[str, tuple[tuple[int, ...], str]]) -> Checkpoint:
    """A manifest of one file with {name: (shape, dtype)}, one after another from offset 0."""
    specs, offset = [], 0
    for name, (shape, dtype) in tensors.items():
        nbytes = math.prod(shape) * itemsize(dtype)
        specs.append(
            TensorSpec(name=name, dtype=dtype, shape=shape, file="f", offset=offset, nbytes=nbytes)
        )
        offset += nbytes
    file = WeightFile(name="f", path="/nowhere/f", size=offset)
    return Checkpoint(
        root="/nowhere",
        origin="made up",
        format="safetensors",
        files=(file,),
        tensors=tuple(specs),
    )
