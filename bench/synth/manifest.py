"""The manifest that a shape's checkpoint would have: planned from, never opened."""

from __future__ import annotations

from bench.synth.shapes import Shape, config_of, expand
from loaders.checkpoint.manifest import Checkpoint, TensorSpec, WeightFile

_FILE = "model.safetensors"


def manifest_of(shape: Shape) -> Checkpoint:
    """Every tensor of the shape, one after another in one file that doesn't exist (`path` is
    empty). Offsets count from the first tensor, as if the file had no header."""
    tensors: list[TensorSpec] = []
    offset = 0
    for one in expand(shape):
        spec = TensorSpec(
            name=one.name,
            dtype=one.dtype,
            shape=one.shape,
            file=_FILE,
            offset=offset,
            nbytes=one.nbytes,
        )
        tensors.append(spec)
        offset += one.nbytes
    return Checkpoint(
        root="",
        origin=shape.name,
        format="safetensors",
        files=(WeightFile(name=_FILE, path="", size=offset),),
        tensors=tuple(tensors),
        config=config_of(shape),
    )
