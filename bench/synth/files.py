"""Weight files from a stream of blocks: safetensors, and the zip form of torch.save.

Both are written front to back in bounded memory, synced, and never held whole.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bench.synth.content import take
from bench.synth.shapes import ShapeTensor
from loaders.checkpoint.dtypes import code, itemsize, torch_dtype

if TYPE_CHECKING:
    import torch

_ALIGNMENT = 64  # of a storage in a torch file, so that it can be mapped
_ZIP64 = 1 << 30  # well below the 2 GiB at which readers need zip64 sizes


def in_file_order(tensors: Sequence[ShapeTensor]) -> list[ShapeTensor]:
    """The order in which the safetensors library lays tensors out: wide dtypes first, which keeps
    all of them aligned, then by name."""
    return sorted(tensors, key=lambda tensor: (-itemsize(tensor.dtype), tensor.name))


def write_safetensors(
    path: Path, tensors: Sequence[ShapeTensor], blocks: Iterator[memoryview]
) -> None:
    """Writes one safetensors file of tensors in `in_file_order`; `blocks` holds their bytes in
    that order. The same bytes as safetensors 0.8 writes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.nbytes
        header[tensor.name] = {
            "dtype": code(tensor.dtype),
            "shape": tensor.shape,
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with path.open("xb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            for block in take(blocks, tensor):
                out.write(block)
        _sync(out)


def write_torch(path: Path, tensors: Sequence[ShapeTensor], blocks: Iterator[memoryview]) -> None:
    """Writes one file as torch.save does a dict of tensors, each with a storage of its own."""
    top = path.stem
    with path.open("xb") as out:
        with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(zipfile.ZipInfo(f"{top}/data.pkl"), _state_dict(tensors))
            archive.writestr(zipfile.ZipInfo(f"{top}/byteorder"), "little")
            for key, tensor in enumerate(tensors):
                info = zipfile.ZipInfo(f"{top}/data/{key}")
                zip64 = tensor.nbytes > _ZIP64
                info.extra = _padding(out.tell() + len(info.filename) + (20 if zip64 else 0))
                with archive.open(info, "w", force_zip64=zip64) as storage:
                    for block in take(blocks, tensor):
                        storage.write(block)
            archive.writestr(zipfile.ZipInfo(f"{top}/version"), "3\n")
        _sync(out)


def _padding(before: int) -> bytes:
    """An extra field that makes a record's data aligned, with so many bytes before the fixed part
    of its header (30 bytes) and the field (4 bytes and padding). Its id, "FB", is torch's own."""
    room = -(before + 34) % _ALIGNMENT
    return b"FB" + room.to_bytes(2, "little") + b"Z" * room


def _state_dict(tensors: Sequence[ShapeTensor]) -> bytes:
    """The pickle of name -> tensor, as torch.save writes it, without allocating any tensor."""
    out = io.BytesIO()
    state = {tensor.name: _Tensor(tensor, str(key)) for key, tensor in enumerate(tensors)}
    _Pickler(out, protocol=2).dump(state)
    return out.getvalue()


class _Storage:
    """Stands for a storage in the pickle, where it is a persistent id."""

    def __init__(self, kind: type, key: str, length: int) -> None:
        self.persistent_id = ("storage", kind, key, "cpu", length)


class _Tensor:
    """Pickles as a contiguous tensor does. torch has storage classes for the older dtypes only;
    a tensor of a newer one names its dtype and has an untyped storage, counted in bytes."""

    def __init__(self, tensor: ShapeTensor, key: str) -> None:
        self.tensor = tensor
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        import torch
        import torch._utils

        dtype = torch_dtype(self.tensor.dtype)
        kind = _storage_classes().get(dtype)
        length = self.tensor.nbytes // (dtype.itemsize if kind else 1)
        storage = _Storage(kind or torch.UntypedStorage, self.key, length)
        none: OrderedDict[str, object] = OrderedDict()
        layout = (storage, 0, self.tensor.shape, _strides(self.tensor.shape), False, none)
        if kind is not None:
            return torch._utils._rebuild_tensor_v2, layout
        return torch._utils._rebuild_tensor_v3, (*layout, dtype)


def _storage_classes() -> dict[torch.dtype, type]:
    import torch

    return {
        torch.bfloat16: torch.BFloat16Storage,
        torch.float16: torch.HalfStorage,
        torch.float32: torch.FloatStorage,
    }


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: object) -> Any:
        return obj.persistent_id if isinstance(obj, _Storage) else None


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(itertools.accumulate(reversed(shape[1:]), int.__mul__, initial=1))[::-1]


def _sync(out: IO[bytes]) -> None:
    out.flush()
    os.fsync(out.fileno())
