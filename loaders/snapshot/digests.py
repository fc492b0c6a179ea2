"""What tells one checkpoint from another, and a written tensor from a damaged one: xxh3-128 of each
tensor's bytes, read as fast as the storage gives them, in the memory of a small ring."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import closing, nullcontext
from typing import cast

import xxhash

from loaders.checkpoint.manifest import Checkpoint
from loaders.contract import Rows
from loaders.direct import Direct
from loaders.slicing.execute import raw
from loaders.snapshot.format import Source

READERS = 4
"""Threads that read, at least: storage wants several reads at once."""


def digests(
    checkpoint: Checkpoint, *, threads: int, on_bytes: Callable[[int], None] = lambda nbytes: None
) -> dict[str, str]:
    """The xxh3-128 of every tensor's bytes, in hex, by name. Around the page cache where the file
    system can. LoadError for what can't be read, OSError."""
    reader = Direct(max(threads, READERS), rows=True)  # in the order of the files, unlike adaptive
    hashers: dict[str, xxhash.xxh3_128] = {}
    rows_of = cast(
        Generator[Rows, None, None], reader.load_rows(checkpoint, lambda phase: nullcontext())
    )
    with closing(rows_of) as arriving:
        for name, _, rows in arriving:
            hasher = hashers.setdefault(name, xxhash.xxh3_128())
            if rows.numel():
                hasher.update(raw(rows).data)
            on_bytes(rows.nbytes)
    return {name: hasher.hexdigest() for name, hasher in hashers.items()}


def structure_of(checkpoint: Checkpoint) -> str:
    """A digest of every tensor's name, dtype and shape, whatever files they are in."""
    every = sorted((spec.name, spec.dtype, list(spec.shape)) for spec in checkpoint.tensors)
    return xxhash.xxh3_128_hexdigest(repr(every).encode())


def content_of(found: Mapping[str, str]) -> str:
    """One digest of all tensors' digests, by name."""
    return xxhash.xxh3_128_hexdigest(repr(sorted(found.items())).encode())


def source_of(checkpoint: Checkpoint, name: str, found: Mapping[str, str]) -> Source:
    """What a snapshot says about the checkpoint that it was made from; `found` as `digests`."""
    return Source(
        name=name,
        format=checkpoint.format,
        files=len(checkpoint.files),
        bytes=checkpoint.tensor_bytes,
        tensors=len(checkpoint.tensors),
        structure=structure_of(checkpoint),
        content=content_of(found),
    )
