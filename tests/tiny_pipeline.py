"""A pipeline's result held against its files."""

from __future__ import annotations

from tiny_loaders import file_bytes

from loaders.checkpoint.manifest import Checkpoint
from loaders.device.interface import raw_bytes
from loaders.pipeline.overlap import Pipelined


def wrong(done: Pipelined, checkpoint: Checkpoint) -> list[str]:
    """The names of tensors that aren't as the manifest and the files have them."""
    found = []
    for (name, tensor), spec in zip(done.tensors, checkpoint.tensors, strict=True):
        as_stated = (name, str(tensor.dtype), tuple(tensor.shape)) == (
            spec.name,
            f"torch.{spec.dtype}",
            spec.shape,
        )
        if not as_stated or bytes(raw_bytes(tensor).cpu().numpy()) != file_bytes(checkpoint, spec):
            found.append(spec.name)
    return found
