"""Tiny checkpoints, written by hand so that they can be wrong in any way."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64, "F8_E4M3": 8, "F8_E5M2": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


def raw_file(header: Any, data: bytes = b"", *, pad: int = 0, length: int | None = None) -> bytes:
    """The bytes of a safetensors file: `header` is JSON-able, text or bytes; `pad` spaces follow
    it; `length` is the header length that is claimed, the true one if None."""
    if isinstance(header, str):
        header = header.encode()
    if not isinstance(header, bytes):
        header = json.dumps(header).encode()
    header += b" " * pad
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def write_raw(path: Path, header: Any, data: bytes = b"", **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw_file(header, data, **options))
    return path


def nbytes(dtype: str, shape: Sequence[int]) -> int:
    elements = 1
    for dim in shape:
        elements *= dim
    return elements * BITS[dtype] // 8


def layout(tensors: Mapping[str, tuple[str, Sequence[int]]]) -> tuple[dict[str, Any], int]:
    """A header for {name: (dtype code, shape)}, one after another, and the bytes of data."""
    header: dict[str, Any] = {}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        end = offset + nbytes(dtype, shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    return header, offset


def write_tensors(
    path: Path,
    tensors: Mapping[str, tuple[str, Sequence[int]]],
    *,
    metadata: Any = ...,
    seed: int = 1,
) -> Path:
    """A sound file with pseudo-random bytes in it."""
    header, size = layout(tensors)
    if metadata is not ...:
        header = {"__metadata__": metadata, **header}
    data = bytes((i * 37 + seed * 11) % 251 for i in range(size))
    return write_raw(path, header, data)


def shard_name(number: int, total: int, stem: str = "model-", suffix: str = ".safetensors") -> str:
    return f"{stem}{number:05d}-of-{total:05d}{suffix}"


def write_index(
    folder: Path,
    weight_map: Mapping[str, Any],
    *,
    name: str = "model.safetensors.index.json",
    total_size: Any = None,
) -> Path:
    root: dict[str, Any] = {"weight_map": dict(weight_map)}
    if total_size is not None:
        root["metadata"] = {"total_size": total_size}
    path = folder / name
    path.write_text(json.dumps(root))
    return path


def write_sharded(
    folder: Path,
    shards: Sequence[Mapping[str, tuple[str, Sequence[int]]]],
    *,
    index: bool = True,
    total: int | None = None,
) -> dict[str, str]:
    """Shards in Hugging Face's naming, with an index; returns the weight map."""
    folder.mkdir(parents=True, exist_ok=True)
    weight_map: dict[str, str] = {}
    size = 0
    for number, tensors in enumerate(shards, 1):
        name = shard_name(number, len(shards) if total is None else total)
        write_tensors(folder / name, tensors, seed=number)
        weight_map.update(dict.fromkeys(tensors, name))
        size += sum(nbytes(*spec) for spec in tensors.values())
    if index:
        write_index(folder, weight_map, total_size=size)
    return weight_map


def write_hf_cache(root: Path, files: Mapping[str, bytes], *, repo: str = "models--org--m") -> Path:
    """A cache repository with one snapshot, which is returned; blobs are named by sha256."""

    base = root / repo
    snapshot = base / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (base / "blobs").mkdir()
    (base / "refs").mkdir()
    (base / "refs" / "main").write_text("0123abcd")
    for name, content in files.items():
        digest = hashlib.sha256(content).hexdigest()
        (base / "blobs" / digest).write_bytes(content)
        (snapshot / name).symlink_to(f"../../blobs/{digest}")
    return snapshot
