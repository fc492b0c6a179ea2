"""Checkpoints that are larger than a ring of one MiB, and what both ring loaders must do."""

from __future__ import annotations

import os
from pathlib import Path

from tiny_loaders import Raw, checkpoint_of, noise, write_shard

from loaders.checkpoint.manifest import Checkpoint

MIB = 1 << 20


def laps(folder: Path, shards: int = 3, tensors: int = 9, nbytes: int = 500_001) -> Checkpoint:
    """Tensors of odd sizes at odd offsets, 13 MB: many laps of a small ring."""
    made = {}
    for number in range(shards):
        name = f"r-{number}.safetensors"
        raws = {
            f"{number}.{index}": Raw("U8", [size], noise(size, 100 * number + index))
            for index in range(tensors)
            for size in [nbytes + 97 * index]
        }
        made[name] = write_shard(folder / name, raws, pad=number)
    return checkpoint_of(folder, made)


def device_bytes() -> int:
    """Bytes that this process has fetched from storage so far."""
    text = Path("/proc/self/io").read_text()
    return int(dict(line.split(": ") for line in text.splitlines())["read_bytes"])


def evict(path: str, start: int = 0, length: int = 0) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def fill(path: str, start: int, length: int) -> None:
    """Brings exactly that range into the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(descriptor, length, start)
    finally:
        os.close(descriptor)
