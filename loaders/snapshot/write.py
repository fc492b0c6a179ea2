"""Writes the snapshot of one rank, reads it back, and only then gives it its header."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import xxhash

from loaders.checkpoint.manifest import Checkpoint, TensorSpec, WeightFile
from loaders.checkpoint.read import examine
from loaders.checkpoint.text import listed
from loaders.slicing.execute import raw
from loaders.snapshot.digests import digests
from loaders.snapshot.errors import NotAsWrittenError
from loaders.snapshot.format import Entry, Header, placed, room, to_bytes
from loaders.snapshot.state import Kept

_FLUSH = 256 << 20
"""Bytes after which what was written is handed to the storage, and its pages given up: a snapshot
as large as the model must not push everything else out of memory."""

Told = Callable[[int], None]


def outlined(header: Header, every: Iterable[Kept]) -> tuple[Header, int]:
    """The header with a place for each tensor and the file's size, and where the data begins.
    Checksums are still absent."""
    tensors = list(every)
    entries = [
        Entry(
            name=one.name, dtype=one.dtype, shape=one.shape, offset=0, nbytes=one.nbytes, of=one.of
        )
        for one in tensors
    ]
    first = room(replace(header, parameters=tuple(entries)))
    offsets, size = placed([one.nbytes for one in tensors], first)
    parameters = tuple(
        replace(entry, offset=offset) for entry, offset in zip(entries, offsets, strict=True)
    )
    return replace(header, parameters=parameters, size=size), first


def write(
    path: Path,
    header: Header,
    first: int,
    tensors: Iterable[tuple[Kept, torch.Tensor]],
    *,
    threads: int,
    on_bytes: Told,
) -> Header:
    """Writes the new file `path` from an outlined header and its tensors in the same order; the
    header as it stands in it, with checksums and the seconds that all this took added to those that
    it came with. Every byte has been read back from the storage then. `on_bytes` is told of bytes
    written and of bytes read back.

    OSError (a full disk too), with the file's header still absent; NotAsWrittenError.
    """
    began = time.monotonic()
    with path.open("xb", buffering=0) as out:
        fd = out.fileno()
        os.ftruncate(fd, header.size)
        written = _data(fd, header.parameters, tensors, on_bytes)
        header = replace(header, parameters=written)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        # Read back before the magic stands there: what can't be proved is never a snapshot.
        _prove(path, header, threads, on_bytes)
        seconds = round(header.made.seconds + time.monotonic() - began, 3)
        header = replace(header, made=replace(header.made, seconds=seconds))
        _pwrite(fd, memoryview(to_bytes(header, first)), 0)
        os.fsync(fd)
    checkpoint = examine(path)
    if checkpoint.errors or checkpoint.facts != header.facts():
        raise NotAsWrittenError(f"{path}: its header isn't what was written: bad storage?")
    return header


def _data(
    fd: int,
    entries: Sequence[Entry],
    tensors: Iterable[tuple[Kept, torch.Tensor]],
    on_bytes: Told,
) -> tuple[Entry, ...]:
    written: list[Entry] = []
    pending = 0
    for entry, (kept, tensor) in zip(entries, tensors, strict=True):
        assert kept.name == entry.name, "tensors come in the outline's order"
        data = raw(tensor).data if tensor.numel() else memoryview(b"")
        if len(data) != entry.nbytes:
            raise ValueError(f"{entry.name}: outlined {entry.nbytes} bytes, got {len(data)}")
        _pwrite(fd, data, entry.offset)
        written.append(replace(entry, xxh3=xxhash.xxh3_128_hexdigest(data)))
        on_bytes(entry.nbytes)
        pending += entry.nbytes
        if pending > _FLUSH:
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            pending = 0
    return tuple(written)


def _pwrite(fd: int, data: memoryview, offset: int) -> None:
    while data:
        done = os.pwrite(fd, data, offset)
        data, offset = data[done:], offset + done


def _prove(path: Path, header: Header, threads: int, on_bytes: Told) -> None:
    found = digests(_unfinished(path, header), threads=threads, on_bytes=on_bytes)
    wrong = [one.name for one in header.parameters if found.get(one.name) != one.xxh3]
    if wrong:
        raise NotAsWrittenError(
            f"{path}: read back, these aren't what was written: {listed(wrong)}; the storage or "
            "the memory of this host is faulty"
        )


def _unfinished(path: Path, header: Header) -> Checkpoint:
    """The manifest of a file whose header isn't there yet."""
    return Checkpoint(
        root=str(path.parent),
        origin=str(path),
        format="snapshot",
        files=(WeightFile(name=path.name, path=str(path), size=header.size),),
        tensors=tuple(
            TensorSpec(
                name=one.name,
                dtype=one.dtype,
                shape=one.shape,
                file=path.name,
                offset=one.offset,
                nbytes=one.nbytes,
            )
            for one in header.parameters
        ),
    )
