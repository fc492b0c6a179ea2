"""Tensors of a checkpoint in host memory, for phases that begin there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import torch

from loaders.checkpoint.manifest import Checkpoint, TensorSpec
from loaders.io.readers import OpenFile, read_into
from loaders.io.tensors import dtype_of

ENOUGH = 512 << 20
"""Bytes of tensors that a phase in memory works on: more than any cache holds, and a real model
needn't fit twice."""

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def pick(checkpoint: Checkpoint, limit: int) -> list[TensorSpec]:
    """The real mix of tensors, cut to about `limit` bytes: whole layers from the first on, then
    what belongs to none, as long as it fits; the first layer always. In the manifest's order."""
    layers: dict[int, list[TensorSpec]] = {}
    others: list[TensorSpec] = []
    for spec in checkpoint.tensors:
        found = _LAYER.search(spec.name)
        (layers.setdefault(int(found[1]), []) if found else others).append(spec)
    chosen: set[str] = set()
    total = 0
    for _, members in sorted(layers.items()):
        nbytes = sum(spec.nbytes for spec in members)
        if chosen and total + nbytes > limit:
            break
        chosen |= {spec.name for spec in members}
        total += nbytes
    for spec in others:
        if not chosen or total + spec.nbytes <= limit:
            chosen.add(spec.name)
            total += spec.nbytes
    return [spec for spec in checkpoint.tensors if spec.name in chosen]


def picked_bytes(specs: Iterable[TensorSpec]) -> int:
    return sum(spec.nbytes for spec in specs)


def load(checkpoint: Checkpoint, specs: Sequence[TensorSpec]) -> dict[str, torch.Tensor]:
    """Reads these tensors into memory of their own: contiguous, resident, dtype and shape of the
    manifest. Not timed by anybody. ValueError for one that isn't one run of its file."""
    paths = {file.name: file.path for file in checkpoint.files}
    tensors: dict[str, torch.Tensor] = {}
    opened: dict[str, OpenFile] = {}
    try:
        for spec in specs:
            if spec.offset is None:
                raise ValueError(f"{spec.file}: tensor {spec.name!r} isn't contiguous in the file")
            tensor = torch.empty(spec.shape, dtype=dtype_of(spec))
            if spec.nbytes:
                file = opened.get(spec.file)
                if file is None:
                    file = opened[spec.file] = OpenFile(paths[spec.file])
                into = tensor.reshape(-1).view(torch.uint8).numpy().data
                read_into(file, into, spec.offset)
            tensors[spec.name] = tensor
    finally:
        for file in opened.values():
            file.close()
    return tensors


def differing(
    found: Iterable[tuple[str, torch.Tensor]], expected: dict[str, torch.Tensor]
) -> list[str]:
    """The first few of `found` (on the host) whose bytes, dtype or shape aren't those expected."""
    faults = []
    for name, tensor in found:
        right = expected[name]
        if (tensor.dtype, tensor.shape) != (right.dtype, right.shape):
            faults.append(f"{name}: {_form(right)} expected, {_form(tensor)} found")
        elif not torch.equal(_raw(tensor), _raw(right)):
            faults.append(f"{name}: wrong bytes")
        if len(faults) == 5:
            break
    return faults


def _form(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
