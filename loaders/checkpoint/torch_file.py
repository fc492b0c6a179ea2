"""The manifest of one file written by torch.save (.pt, .pth, .bin), from its pickle alone.

No tensor data is read and torch is not imported. Both forms are told by the first bytes, never by
the name: `model.pth.tar` is usually a zip.
"""

from __future__ import annotations

import io
import math
from typing import BinaryIO

from loaders.checkpoint.manifest import Problem, TensorSpec
from loaders.checkpoint.regular import opened, read_at
from loaders.checkpoint.sniff import HEAD_BYTES, foreign
from loaders.checkpoint.text import count, shown
from loaders.checkpoint.torch_legacy import read_legacy
from loaders.checkpoint.torch_pickle import unpickle
from loaders.checkpoint.torch_values import RefusedError, StoredTensor, width
from loaders.checkpoint.torch_zip import MAGIC, Place, read_archive
from loaders.checkpoint.weight_dict import WeightDictError, Weights, find_weights


def is_zip(path: str) -> bool:
    """Whether torch.load can map the file: only the zip form can."""
    with opened(path) as (fd, _):
        return read_at(fd, 0, len(MAGIC)) == MAGIC


def read_torch_file(path: str, name: str) -> tuple[list[TensorSpec], list[Problem]]:
    """The weights in one torch.save file and what is wrong with it. `name` stands in both.

    Tensors come by offset, those without one (strided, conjugate) last. Tensors that share a
    storage (tied, or views of a larger one) carry its key in `storage` and its full size in
    `storage_nbytes`. Training state beside the weights is one warning. Never raises for what the
    file holds or for a file that can't be opened: that is a problem, too.
    """
    try:
        with opened(path) as (fd, size), open(fd, "rb", closefd=False) as file:
            saved, places, swapped = _read(file, fd, size)
            weights = find_weights(saved, StoredTensor)
    except OSError as error:
        return [], [_problem("unreadable-file", name, error.strerror or str(error))]
    except (RefusedError, WeightDictError) as error:
        return [], [_problem(error.code, name, str(error))]
    except (MemoryError, RecursionError) as error:
        what = f"its pickle is a bomb or damaged ({type(error).__name__} while it was read)"
        return [], [_problem("corrupt-pickle", name, what)]
    specs: list[TensorSpec] = []
    problems: list[Problem] = []
    for tensor, stored in weights.tensors.items():
        fault = _fault(stored, places)
        if fault is None:
            specs.append(_spec(tensor, stored, places, name, swapped))
        else:
            code, what = fault
            problems.append(_problem(code, name, f"tensor {shown(tensor)}: {what}", tensor))
    specs.sort(key=lambda spec: math.inf if spec.offset is None else spec.offset)
    if weights.skipped:
        problems.append(_skipped(weights, name))
    return specs, problems


def _read(file: BinaryIO, fd: int, size: int) -> tuple[object, dict[str, Place], bool]:
    head = read_at(fd, 0, HEAD_BYTES)
    if head.startswith(MAGIC):
        archive = read_archive(file, size)
        saved, _ = unpickle(io.BytesIO(archive.pickle))
        return saved, archive.places, archive.swapped
    if head.startswith(b"\x80") and not _is_safetensors(head, size):
        return *read_legacy(file, size), False
    raise RefusedError(*_what_else(head, size))


def _is_safetensors(head: bytes, size: int) -> bool:
    return head[8:10] in (b'{"', b"{}", b"{ ") and int.from_bytes(head[:8], "little") <= size


def _what_else(head: bytes, size: int) -> tuple[str, str]:
    """(problem code, sentence) of a file that begins as neither form of torch.save."""
    if size == 0:
        return "empty-file", "an empty file (0 bytes): fetch it again"
    if head[257:262] == b"ustar":
        return "tar-archive", (
            "a tar archive: torch before 0.1.10 saved so, which torch.load(weights_only=True) "
            "refuses (load it with weights_only=False if you trust it, and save it again); "
            "if a checkpoint was packed into it, unpack it"
        )
    if _is_safetensors(head, size):
        return "not-weights", "this is a safetensors file: rename it to .safetensors"
    known = foreign(head, size)
    if known is not None:
        return known
    return "not-weights", (
        f"neither a zip file nor a pickle, as torch.save writes them (first bytes "
        f"{head[:8].hex(' ')}): damaged or another format; fetch it again"
    )


def _fault(stored: StoredTensor, places: dict[str, Place]) -> tuple[str, str] | None:
    """(problem code, sentence) if the tensor can't be measured."""
    itemsize = width(stored.dtype)
    storage = stored.storage
    if stored.odd is not None or itemsize is None or storage is None:
        return "unsupported-tensor", (
            f"a {stored.odd or stored.dtype}, not a plain array of numbers; no engine loads it "
            "from a weight file: save it as plain tensors"
        )
    unit = width(storage.dtype) if storage.dtype else 1
    needed = storage.numel * (unit or 1)
    place = places.get(storage.key)
    if place is None:
        return "missing-storage", (
            f"its storage {shown(storage.key)} is not in the file: cut off or damaged"
        )
    if storage.numel < 0 or place.nbytes != needed:
        return "storage-size", (
            f"its storage {shown(storage.key)} should have {needed:,} bytes by the pickle and has "
            f"{place.nbytes:,} in the file: damaged; fetch it again"
        )
    if 0 in stored.shape:
        return None
    steps = zip(stored.shape, stored.stride, strict=True)
    end = (stored.offset + 1 + sum((size - 1) * stride for size, stride in steps)) * itemsize
    if end > place.nbytes:
        return "out-of-bounds", (
            f"shape {shown(list(stored.shape))} ends at byte {end:,} of a storage of "
            f"{place.nbytes:,} bytes: damaged; fetch it again"
        )
    return None


def _spec(
    tensor: str, stored: StoredTensor, places: dict[str, Place], name: str, swapped: bool
) -> TensorSpec:
    storage, itemsize = stored.storage, width(stored.dtype)
    assert storage is not None
    assert itemsize is not None
    place = places[storage.key]
    plain = stored.contiguous and not stored.lazy and not swapped
    return TensorSpec(
        name=tensor,
        dtype=stored.dtype,
        shape=stored.shape,
        file=name,
        offset=place.offset + stored.offset * itemsize if plain else None,
        nbytes=stored.nbytes,
        storage=storage.key,
        storage_nbytes=place.nbytes,
    )


def _skipped(weights: Weights[StoredTensor], name: str) -> Problem:
    parts = [
        f"{shown(path)} ({count(len(tensors), 'tensor')}, "
        f"{count(sum(tensor.nbytes for tensor in tensors), 'byte')})"
        for path, tensors in weights.skipped.items()
    ]
    taken = f"the weights are under {shown(weights.path)!r}; " if weights.path else ""
    more = f" and {len(parts) - 8} more" if len(parts) > 8 else ""
    return Problem(
        code="not-weights",
        message=f"{name}: {taken}not counted as weights: {', '.join(parts[:8])}{more}",
        file=name,
        severity="warning",
    )


def _problem(code: str, name: str, what: str, tensor: str | None = None) -> Problem:
    return Problem(code=code, message=f"{name}: {what}", file=name, tensor=tensor)
