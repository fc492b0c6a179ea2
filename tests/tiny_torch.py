"""Tiny torch.save files and npcaches, and a checkpoint made by hand for their loaders."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from loaders.checkpoint.manifest import Checkpoint, Problem, TensorSpec, WeightFile
from loaders.checkpoint.npcache_dir import read_npcache
from loaders.checkpoint.torch_file import read_torch_file

# Every dtype that torch.save writes for plain arrays.
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
# Those that the legacy form can hold so that torch.load reads them again.
LEGACY_DTYPES = tuple(
    d for d in DTYPES if not str(d).startswith(("torch.float8", "torch.uint")) or d is torch.uint8
)


def save(obj: Any, path: Path, *, legacy: bool = False, **options: Any) -> Path:
    torch.save(obj, str(path), _use_new_zipfile_serialization=not legacy, **options)
    return path


def manifest(path: Path) -> tuple[list[TensorSpec], list[Problem]]:
    return read_torch_file(str(path), path.name)


def codes(path: Path) -> list[str]:
    return [problem.code for problem in manifest(path)[1]]


def pt_checkpoint(*paths: Path) -> Checkpoint:
    files, tensors, problems = [], [], []
    for path in paths:
        files.append(WeightFile(name=path.name, path=str(path), size=path.stat().st_size))
        found, wrong = manifest(path)
        tensors += found
        problems += wrong
    return Checkpoint(
        root=str(paths[0].parent),
        origin=str(paths[0].parent),
        format="pt",
        files=tuple(files),
        tensors=tuple(tensors),
        problems=tuple(problems),
    )


def npcache_checkpoint(folder: Path) -> Checkpoint:
    files, tensors, problems = read_npcache(str(folder))
    return Checkpoint(
        root=str(folder),
        origin=str(folder),
        format="npcache",
        files=tuple(files),
        tensors=tuple(tensors),
        problems=tuple(problems),
    )


def no_stamp(phase: str) -> AbstractContextManager[None]:
    assert phase in ("open", "allocate")
    return nullcontext()


class Stamps:
    """Counts how often each phase was stamped."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, phase: str) -> AbstractContextManager[None]:
        self.seen.append(phase)
        return nullcontext()


def raw(tensor: torch.Tensor) -> bytes:
    """The tensor's bytes in its logical order."""
    if tensor.numel() == 0:
        return b""
    plain = (
        tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    )
    plain = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(plain.reshape(-1))
    return plain.view(torch.uint8).numpy().tobytes()


def of_bytes(values: list[int], dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    if not values:
        return torch.empty(shape, dtype=dtype)
    return torch.tensor(values, dtype=torch.uint8).view(dtype).reshape(shape)


def named(items: Iterator[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for name, tensor in items:
        assert name not in found
        found[name] = tensor
    return found


def repack(
    path: Path,
    change: dict[str, Callable[[bytes], bytes]] | None = None,
    compress: Collection[str] = (),
    leave_out: Collection[str] = (),
    add: dict[str, bytes] | None = None,
) -> None:
    """Writes a torch zip again with records changed, compressed, left out or added."""
    with zipfile.ZipFile(path) as old:
        records = [(name, old.read(name)) for name in old.namelist()]
    with zipfile.ZipFile(path, "w") as new:
        for name, data in records:
            short = name.partition("/")[2]
            if short in leave_out:
                continue
            kind = zipfile.ZIP_DEFLATED if short in compress else zipfile.ZIP_STORED
            new.writestr(name, (change or {}).get(short, lambda d: d)(data), kind)
        for short, data in (add or {}).items():
            new.writestr(records[0][0].partition("/")[0] + "/" + short, data)


def zip_of(pickled: bytes, path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", pickled)
        archive.writestr("x/version", "3\n")
    return path


def names(path: Path) -> list[str]:
    return sorted(spec.name for spec in manifest(path)[0])
