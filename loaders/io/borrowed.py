"""Tensors that are streamed through a bounded ring of memory: each is valid until the next one is
asked for, and the whole load needs the ring and no more."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch

from loaders.checkpoint.manifest import Checkpoint
from loaders.io.ahead import TouchAhead
from loaders.io.buffers import PAGE, allocate
from loaders.io.errors import LoadError
from loaders.io.interleave import Turn, in_order
from loaders.io.layout import Extent, Ring, plan_places, plan_reads, ring_for
from loaders.io.refill import Refill
from loaders.io.sources import OpenSource, summed
from loaders.io.tensors import dtype_of, is_aligned, require_dtypes, tensor_over

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


def shape_of(
    settings: Mapping[str, bool | int | str], threads: int, *, both: bool = False
) -> Shape:
    """From a loader's options: `ring_mib` (0: 64, or for `rows` two blocks a reader and four at
    least), `block_mib`, `pages` ("huge", "4k"), `readers` (0: as many as `threads`), `rows`.
    `both`: memory and device are read from at once, with so many readers for each."""
    block = int(settings["block_mib"]) << 20
    readers = (int(settings["readers"]) or threads) * (2 if both else 1)
    enough = max(2 * readers, 4) * block if settings["rows"] else _RING
    return Shape(
        ring_bytes=int(settings["ring_mib"]) << 20 or enough,
        block_bytes=block,
        readers=readers,
        huge=settings["pages"] == "huge",
    )


def ring_of(checkpoint: Checkpoint, shape: Shape) -> Ring:
    """The ring that the checkpoint's tensors need (see `ring_for`)."""
    extents = _extents(checkpoint, in_order(len(checkpoint.tensors)))[1]
    return ring_for(extents, wanted=shape.ring_bytes, block=shape.block_bytes, align=PAGE)


def stream_tensors(
    checkpoint: Checkpoint,
    shape: Shape,
    *,
    turns: Sequence[Turn],
    open_source: OpenSource,
    stamp: Callable[[Literal["allocate"]], AbstractContextManager[None]],
    note: Callable[[str], None],
    show_memory: Callable[[str, memoryview], None],
) -> Generator[tuple[int, torch.Tensor], None, None]:
    """Yields every tensor, with its number in the checkpoint, as soon as its bytes are there.
    `turns`: each number once; the order, which has no need to be that of the file.

    Advancing the iterator gives the tensor's memory up: other bytes are read into it. Closing it
    joins the threads and closes the files. LoadError for what can't be loaded.
    """
    require_dtypes(checkpoint)
    paths, extents = _extents(checkpoint, turns)
    ring = ring_of(checkpoint, shape)
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
        with refill, TouchAhead([buffer]):
            places = plan_places(extents, ring)
            for past, (turn, place) in enumerate(zip(turns, places, strict=True)):
                refill.give_up(past)
                refill.wait(place.reads)
                spec = checkpoint.tensors[turn.number]
                if spec.nbytes and not is_aligned(place.position, dtype_of(spec)):
                    note("tensors at offsets that their dtype can't have in memory were copied")
                yield turn.number, tensor_over(memory, place.position, spec)
    finally:
        for text in summed(refill.notes):
            note(text)
        del memory, refill
        buffer.close()


def _extents(checkpoint: Checkpoint, turns: Sequence[Turn]) -> tuple[list[str], list[Extent]]:
    """Where each tensor lies in its file, and the files that hold bytes of tensors, numbered as
    they are come to. Each of two streams has its own: it walks through the files one by one, and so
    few need to be open at once."""
    paths = {file.name: file.path for file in checkpoint.files}
    numbers: dict[tuple[str, int], int] = {}
    extents: list[Extent] = []
    for turn in turns:
        spec = checkpoint.tensors[turn.number]
        path = paths[spec.file]
        if spec.offset is None:
            raise LoadError(f"{path}: tensor {spec.name!r} isn't contiguous in the file")
        file = numbers.setdefault((path, turn.stream), len(numbers)) if spec.nbytes else 0
        extents.append(Extent(file=file, offset=spec.offset, nbytes=spec.nbytes))
    return [path for path, _ in numbers], extents


def _largest(checkpoint: Checkpoint) -> str:
    largest = max(checkpoint.tensors, key=lambda spec: spec.nbytes)
    return f"{largest.file}: tensor {largest.name!r} of {largest.nbytes} bytes"
