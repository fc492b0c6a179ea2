"""Checkpoints and marks for the tests of other people's loaders."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_loaders import (
    Raw,
    checkpoint_of,
    write_shard,
)

from loaders.checkpoint.manifest import Checkpoint
from loaders.registry import entries, unavailable


def needs(name: str) -> pytest.MarkDecorator:
    reason = unavailable(entries()[name])
    return pytest.mark.skipif(reason is not None, reason=f"{name}: {reason}")


def one_file(folder: Path, tensors: dict[str, Raw]) -> Checkpoint:
    return checkpoint_of(folder, {"x.safetensors": write_shard(folder / "x.safetensors", tensors)})


def entry(
    name: bytes,
    dtype: bytes,
    shape: list[int],
    offset: int,
    nbytes: int,
    *,
    version: int | None = None,
) -> bytes:
    wide = 8 if version is not None and version >= 5 else 4
    raw = b"" if version is None else version.to_bytes(4, "little")
    raw += len(name).to_bytes(2, "little") + name + b"\2" + bytes([len(dtype)]) + dtype
    raw += bytes([len(shape)]) + b"".join(extent.to_bytes(wide, "little") for extent in shape)
    return raw + bytes(8) + offset.to_bytes(8, "little") + nbytes.to_bytes(8, "little")
