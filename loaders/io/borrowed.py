"""Tensors that are streamed through a bounded ring of memory: each is valid until the next one is
asked for, and the whole load needs the ring and no more."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch

from loaders.checkpoint.manifest import Checkpoint, TensorSpec
from loaders.io.ahead import TouchAhead
from loaders.io.buffers import PAGE, allocate
from loaders.io.errors import LoadError
from loaders.io.layout import Extent, Ring, plan_places, plan_reads, ring_for
from loaders.io.refill import Refill
from loaders.io.sources import OpenSource, summed
from loaders.io.tensors import by_file, dtype_of, is_aligned, require_dtypes, tensor_over

_RING = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a ring is read into: its wished size and its blocks in bytes, how many threads, and
    whether its pages are to be huge."""

    ring_bytes: int
    block_bytes: int
    readers: int
    huge: bool

    @property
    def part_bytes(self) -> int:
        """What a run of rows has at most: a whole number of blocks then holds as many runs, in
        spite of the pages that they share, and no read between them is a short one."""
        return self.block_bytes - 2 * PAGE


def shape_of(settings: Mapping[str, bool | int | str], threads: int) -> Shape:
    """From a loader's options: `ring_mib` (0: 64, or for `rows` two blocks a reader and four at
    least), `block_mib`, `pages` ("huge", "4k"), `readers` (0: as many as `threads`), `rows`."""
    block = int(settings["block_mib"]) << 20
    readers = int(settings["readers"]) or threads
    enough = max(2 * readers, 4) * block if settings["rows"] else _RING
    return Shape(
        ring_bytes=int(settings["ring_mib"]) << 20 or enough,
        block_bytes=block,
        readers=readers,
        huge=settings["pages"] == "huge",
    )


def ring_of(checkpoint: Checkpoint, shape: Shape) -> Ring:
    """The ring that the checkpoint's tensors need (see `ring_for`)."""
    return _ring(_extents(checkpoint)[1], shape)


def stream_tensors(
    checkpoint: Checkpoint,
    shape: Shape,
    *,
    open_source: OpenSource,
    stamp: Callable[[Literal["allocate"]], AbstractContextManager[None]],
    note: Callable[[str], None],
    show_memory: Callable[[str, memoryview], None],
) -> Generator[tuple[str, torch.Tensor], None, None]:
    """Yields every tensor in the order of files and offsets as soon as its bytes are there.

    Advancing the iterator gives the tensor's memory up: other bytes are read into it. Closing it
    joins the threads and closes the files. LoadError for what can't be loaded.
    """
    require_dtypes(checkpoint)
    paths, extents = _extents(checkpoint)
    ring = _ring(extents, shape)
    if ring.nbytes > shape.ring_bytes + shape.block_bytes:
        wanted = shape.ring_bytes >> 20
        note(f"a ring of {ring.nbytes >> 20} MiB instead of {wanted} for {_largest(checkpoint)}")
    with stamp("allocate"):
        try:
            buffer = allocate(ring.nbytes, huge=shape.huge)
        except MemoryError as error:
            text = f"no memory for a ring of {ring.nbytes} bytes for {_largest(checkpoint)}"
            raise LoadError(f"{text}: {error}") from error
    if buffer.refused is not None:
        note(f"the host decides about the ring's pages: {buffer.refused}")
    memory = buffer.view()
    show_memory("ring", memory)
    refill = Refill(
        paths,
        plan_reads(extents, ring),
        memory,
        open_source=open_source,
        readers=shape.readers,
    )
    try:
        with refill, TouchAhead(buffer):
            places = plan_places(extents, ring)
            for number, (spec, place) in enumerate(zip(checkpoint.tensors, places, strict=True)):
                refill.give_up(number)
                refill.wait(place.reads)
                if spec.nbytes and not is_aligned(place.position, dtype_of(spec)):
                    note("tensors at offsets that their dtype can't have in memory were copied")
                yield spec.name, tensor_over(memory, place.position, spec)
    finally:
        for text in summed(refill.notes):
            note(text)
        del memory, refill
        buffer.close()


def _extents(checkpoint: Checkpoint) -> tuple[list[str], list[Extent]]:
    """The paths of the files that hold bytes of tensors, and where each tensor lies in them."""
    paths: list[str] = []
    extents: list[Extent] = []
    for file, specs in by_file(checkpoint):
        if any(spec.nbytes for spec in specs):
            paths.append(file.path)
        for spec in specs:
            extents.append(_extent(max(len(paths) - 1, 0), file.path, spec))
    return paths, extents


def _extent(file: int, path: str, spec: TensorSpec) -> Extent:
    if spec.offset is None:
        raise LoadError(f"{path}: tensor {spec.name!r} isn't contiguous in the file")
    return Extent(file=file, offset=spec.offset, nbytes=spec.nbytes)


def _ring(extents: list[Extent], shape: Shape) -> Ring:
    return ring_for(extents, wanted=shape.ring_bytes, block=shape.block_bytes, align=PAGE)


def _largest(checkpoint: Checkpoint) -> str:
    largest = max(checkpoint.tensors, key=lambda spec: spec.nbytes)
    return f"{largest.file}: tensor {largest.name!r} of {largest.nbytes} bytes"
