"""Tiny checkpoints with everything in them that trips loaders, their bytes known beforehand."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from loaders.checkpoint.dtypes import BY_CODE
from loaders.checkpoint.manifest import Checkpoint, TensorSpec, WeightFile


class Raw(NamedTuple):
    """A tensor as a safetensors header states it, and its bytes."""

    code: str
    shape: Sequence[int]
    data: bytes


def noise(nbytes: int, seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(nbytes)


def write_shard(path: Path, tensors: Mapping[str, Raw], *, pad: int = 0) -> list[TensorSpec]:
    """Writes a safetensors file by hand, `pad` spaces behind its header, tensors in the order
    given. Returns the manifest's entries."""
    header: dict[str, object] = {}
    position = 0
    for name, raw in tensors.items():
        end = position + len(raw.data)
        header[name] = {
            "dtype": raw.code,
            "shape": list(raw.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header).encode() + b" " * pad
    data = b"".join(raw.data for raw in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    specs, position = [], 8 + len(text)
    for name, raw in tensors.items():
        row = BY_CODE[raw.code]
        shape = list(raw.shape)
        if row.packed > 1:
            shape[-1] //= row.packed
        specs.append(
            TensorSpec(
                name=name,
                dtype=row.name,
                shape=tuple(shape),
                file=path.name,
                offset=position,
                nbytes=len(raw.data),
            )
        )
        position += len(raw.data)
    return specs


def checkpoint_of(folder: Path, shards: Mapping[str, Sequence[TensorSpec]]) -> Checkpoint:
    return Checkpoint(
        root=str(folder),
        origin=str(folder),
        format="safetensors",
        files=tuple(
            WeightFile(name=name, path=str(folder / name), size=(folder / name).stat().st_size)
            for name in shards
        ),
        tensors=tuple(spec for specs in shards.values() for spec in specs),
    )


# What a library can't hold; its loader says so with the tensor's name (tests/test_peers.py).
LACKING = {
    "fastsafetensors": frozenset({"09.C64"}),  # complex numbers
    "tensorizer": frozenset({"empty.0"}),  # empty, of a dtype that numpy lacks
}


def tricky(folder: Path, without: Collection[str] = ()) -> Checkpoint:
    """Four shards: several dtypes, empties (also last, also a whole shard of them), scalars, names
    against the order of offsets, headers of any size, tensors across blocks and pages; `without`
    the tensors named."""
    dtypes = ["F64", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL", "C64", "U16", "U32"]
    dtypes += ["U64", "F8_E4M3", "F8_E5M2"]
    kinds = {
        f"{number:02}.{code}": Raw(code, [3, 2], noise(6 * BY_CODE[code].bits // 8, number))
        for number, code in enumerate(dtypes)
    }
    kinds["08.BOOL"] = Raw("BOOL", [3, 2], b"\0\1\1\0\1\0")
    odd = {
        "z.first": Raw("U8", [3], b"abc"),
        "a.odd_bf16": Raw("BF16", [5, 7], noise(70, 20)),
        "m.odd_f32": Raw("F32", [1001], noise(4004, 21)),
        "scalar": Raw("F32", [], b"\0\0\x80\x3f"),
        "scalar1": Raw("F32", [1], b"\0\0\x80\x3f"),
        "empty.0": Raw("BF16", [0], b""),
        "empty.0x8": Raw("F32", [0, 8], b""),
        "y.big": Raw("BF16", [1024, 1030], noise(2 * 1024 * 1030, 22)),
        "empty.last": Raw("I64", [4, 0], b""),
    }
    kinds = {name: raw for name, raw in kinds.items() if name not in without}
    odd = {name: raw for name, raw in odd.items() if name not in without}
    shards = {
        "a-1.safetensors": write_shard(folder / "a-1.safetensors", kinds, pad=1),
        "a-2.safetensors": write_shard(folder / "a-2.safetensors", odd, pad=4),
        "a-3.safetensors": write_shard(
            folder / "a-3.safetensors", {"only.empty": Raw("F16", [0, 3], b"")}
        ),
        "a-10.safetensors": write_shard(
            folder / "a-10.safetensors", {"tail": Raw("F16", [2500], noise(5000, 23))}, pad=7
        ),
    }
    return checkpoint_of(folder, shards)


def many_shards(folder: Path, count: int = 64, nbytes: int = 3000) -> Checkpoint:
    shards = {}
    for number in range(count):
        name = f"s-{number:03}.safetensors"
        tensor = {f"layer.{number}.w": Raw("U8", [nbytes], noise(nbytes, number))}
        shards[name] = write_shard(folder / name, tensor, pad=number % 8)
    return checkpoint_of(folder, shards)


def file_bytes(checkpoint: Checkpoint, spec: TensorSpec) -> bytes:
    """What the file holds for a tensor."""
    assert spec.offset is not None
    with Path(checkpoint.file(spec.file).path).open("rb") as file:
        file.seek(spec.offset)
        return file.read(spec.nbytes)


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


class Stamps:
    """A stopwatch that counts instead: which phases were entered, and that they don't nest."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.open = False

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        assert not self.open, "stamps must not nest"
        self.open = True
        self.entered.append(phase)
        try:
            yield
        finally:
            self.open = False
