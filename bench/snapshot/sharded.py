"""The same state in the engines' own files: `model-rank-<rank>-part-<part>.safetensors`, with
pipeline stages `model-pp-<pp>-tp-<tp>-part-<part>.safetensors` (vLLM 0.32, ShardedStateLoader)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import xxhash

from bench.quantize.plan import Stored
from bench.quantize.shard import ShardWriter
from loaders.checkpoint.read import open_checkpoint
from loaders.checkpoint.text import listed
from loaders.slicing.execute import raw
from loaders.snapshot.digests import digests
from loaders.snapshot.errors import NotAsWrittenError
from loaders.snapshot.format import Entry, Layout
from loaders.snapshot.state import Kept

PART = 5 << 30
"""Bytes of a part, as in the engines' own script."""


def part_name(layout: Layout, part: int) -> str:
    if layout.pp == 1:
        return f"model-rank-{layout.rank}-part-{part}.safetensors"
    stage, tp = divmod(layout.rank, layout.tp)
    return f"model-pp-{stage}-tp-{tp}-part-{part}.safetensors"


def parts_of(entries: Sequence[Entry], most: int) -> list[list[Entry]]:
    """Parameters in runs of at most `most` bytes, one at least."""
    parts: list[list[Entry]] = []
    total = 0
    for entry in entries:
        if not parts or total + entry.nbytes > most:
            parts.append([])
            total = 0
        parts[-1].append(entry)
        total += entry.nbytes
    return parts


def write_parts(
    folder: Path,
    layout: Layout,
    parts: Sequence[Sequence[Entry]],
    tensors: Iterator[tuple[Kept, torch.Tensor]],
    *,
    threads: int,
    on_bytes: Callable[[int], None],
) -> dict[str, str]:
    """Writes one rank's parts from its tensors in the same order, syncs and reads them back; the
    digests of their tensors by name. OSError, NotAsWrittenError."""
    written: dict[str, str] = {}
    for number, part in enumerate(parts):
        stored = [Stored(name=one.name, dtype=one.dtype, shape=one.shape) for one in part]
        with ShardWriter(folder / part_name(layout, number), stored) as out:
            for _ in part:
                kept, tensor = next(tensors)
                out.put(kept.name, tensor)
                data = raw(tensor).data if tensor.numel() else b""
                written[kept.name] = xxhash.xxh3_128_hexdigest(data)
                on_bytes(kept.nbytes)
            out.finish()
    first = folder / part_name(layout, 0)
    found = digests(open_checkpoint(first), threads=threads, on_bytes=on_bytes)
    wrong = [name for name, digest in written.items() if found.get(name) != digest]
    if wrong or found.keys() != written.keys():
        raise NotAsWrittenError(f"{first}: read back, these aren't as written: {listed(wrong)}")
    return written
