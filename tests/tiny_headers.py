"""Files with a header of any kind, and what the library says to them."""

from __future__ import annotations

from pathlib import Path

import safetensors
import torch

from loaders.checkpoint import dtypes
from loaders.checkpoint.safetensors_header import Header, read_header


def header_of(path: Path) -> Header:
    return read_header(str(path), path.name)


def library_takes(path: Path) -> bool:
    try:
        with safetensors.safe_open(str(path), "pt"):
            return True
    except safetensors.SafetensorError:
        return False


def same_as_library(path: Path, header: Header) -> None:
    """Names, dtypes, shapes, metadata and bytes, as far as torch has the dtype."""
    with safetensors.safe_open(str(path), "pt") as file:
        assert set(file.keys()) == {tensor.name for tensor in header.tensors}
        assert (file.metadata() or None) == (dict(header.metadata or {}) or None)
        content = path.read_bytes()
        for tensor in header.tensors:
            if any(p.tensor == tensor.name for p in header.problems):
                continue  # no torch tensor can be made of it
            loaded = file.get_tensor(tensor.name)
            assert loaded.dtype == dtypes.torch_dtype(tensor.dtype)
            assert tuple(loaded.shape) == tensor.shape
            assert loaded.nbytes == tensor.nbytes
            assert tensor.offset is not None
            raw = content[tensor.offset : tensor.offset + tensor.nbytes]
            flat = loaded.contiguous().reshape(-1)
            if flat.numel():
                assert bytes(flat.view(torch.uint8).numpy()) == raw
