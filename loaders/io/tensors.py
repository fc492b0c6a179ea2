"""Tensors over memory that holds a file's bytes, and the manifest in the form loaders walk it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from math import prod

import torch

from loaders.checkpoint.dtypes import UnsupportedDtypeError, torch_dtype
from loaders.checkpoint.manifest import Checkpoint, TensorSpec, WeightFile
from loaders.io.errors import LoadError


def by_file(checkpoint: Checkpoint) -> Iterator[tuple[WeightFile, list[TensorSpec]]]:
    """Each file that holds tensors with them, in the manifest's order. One pass over all tensors:
    asking file by file takes a second for the 90,000 of a large mixture of experts."""
    files = {file.name: file for file in checkpoint.files}
    for name, specs in groupby(checkpoint.tensors, key=lambda spec: spec.file):
        yield files[name], list(specs)


def dtype_of(spec: TensorSpec) -> torch.dtype:
    """torch's dtype for a tensor; LoadError that names both if the installed torch lacks it."""
    try:
        return torch_dtype(spec.dtype)
    except UnsupportedDtypeError as error:
        raise LoadError(f"{spec.file}: tensor {spec.name!r}: {error}") from error


def require_dtypes(checkpoint: Checkpoint) -> None:
    """LoadError for the first tensor whose dtype the installed torch lacks. For loaders that leave
    the building of tensors to a library, which says less."""
    seen: set[str] = set()
    for spec in checkpoint.tensors:
        if spec.dtype not in seen:
            seen.add(spec.dtype)
            dtype_of(spec)


def tensor_over(memory: memoryview | bytearray, start: int, spec: TensorSpec) -> torch.Tensor:
    """The tensor whose bytes begin at `start` of `memory`, which it keeps alive and shares; a
    copy where its address isn't a multiple of its element size (see `is_aligned`).

    Contiguous, dtype and shape of the manifest. LoadError if shape and bytes disagree.
    """
    dtype = dtype_of(spec)
    if prod(spec.shape) * dtype.itemsize != spec.nbytes:
        raise LoadError(
            f"{spec.file}: tensor {spec.name!r} is {spec.dtype} {list(spec.shape)}, expected "
            f"{prod(spec.shape) * dtype.itemsize} bytes, found {spec.nbytes}"
        )
    if spec.nbytes == 0:  # frombuffer takes no empty ones
        return torch.empty(spec.shape, dtype=dtype)
    raw = torch.frombuffer(memory, dtype=torch.uint8, count=spec.nbytes, offset=start)
    if not is_aligned(raw.data_ptr(), dtype):
        raw = raw.clone()
    return raw.view(dtype).view(spec.shape)


def is_aligned(address: int, dtype: torch.dtype) -> bool:
    """Whether elements may lie there. Vector code and other devices may not read across; a complex
    number needs no more than each of its parts."""
    step = dtype.itemsize // 2 if dtype.is_complex else dtype.itemsize
    return address % step == 0
