"""Our own: threads that really read, straight into the memory that the tensors lie in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch

from loaders.checkpoint.manifest import Checkpoint, TensorSpec, WeightFile
from loaders.contract import Loader, OptionValue, Stamp
from loaders.io.ahead import TouchAhead
from loaders.io.buffers import PAGE, Buffer, allocate
from loaders.io.chunks import Span
from loaders.io.errors import LoadError
from loaders.io.pool import ReaderPool
from loaders.io.sources import Residents, summed
from loaders.io.tensors import by_file, dtype_of, is_aligned, tensor_over
from loaders.registry import register


@register
class Parallel(Loader):
    """One buffer per file holds the bytes from its first tensor to its last, at the same place
    within the page as in the file. Threads fill the buffers in order, block by block, and another
    one touches their pages a little ahead of them (`ahead_mib`); each tensor is yielded once its
    last block is there, while later ones are still being read.

    Blocks that aren't in the page cache are read around it, straight into the memory that stays:
    without a copy, and without fresh pages for the cache beside those for the tensors. Those that
    the cache has are copied from there. `direct=false` leaves all of it to the cache."""

    name = "parallel"
    summary = "2 N threads read blocks into fresh memory; tensors are yielded as they arrive"
    formats = frozenset({"safetensors"})
    ownership = "owned"
    options: ClassVar[Mapping[str, OptionValue]] = {
        "ahead_mib": 256,  # how far a thread gets pages ahead of the readers; 0: they do it
        "block_mib": 16,
        "direct": True,
        "pages": "host",  # as this host gives them to everyone; or "huge", "4k"
        "readers": 0,  # twice as many as `threads`: while one gets pages, another's read is on
    }
    variants = ({}, {"pages": "huge"})
    threaded = True

    def __init__(self, threads: int = 1, **given: OptionValue) -> None:
        super().__init__(threads, **given)
        self.require_positive("block_mib")
        self.require_one_of("pages", "host", "huge", "4k")
        self.require_not_negative("readers")
        self.require_not_negative("ahead_mib")

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[tuple[str, torch.Tensor]]:
        shards = [(_from_page(span_of(file, specs)), specs) for file, specs in by_file(checkpoint)]
        spans = [span for span, _ in shards]
        with stamp("allocate"):
            huge = {"host": None, "huge": True, "4k": False}[str(self.settings["pages"])]
            buffers = [allocate(span.length, huge=huge) for span in spans]
            memory = [buffer.view() for buffer in buffers]
        for piece in memory:
            self.show_memory("owned", piece)
            del piece
        self._note_pages(buffers)
        lead = int(self.settings["ahead_mib"]) << 20
        touching = TouchAhead(buffers if lead else [], lead)
        buffers.clear()
        pool = ReaderPool(
            spans,
            memory,
            threads=int(self.settings["readers"]) or 2 * self.threads,
            block_bytes=int(self.settings["block_mib"]) << 20,
            open_source=Residents().open if self.settings["direct"] else None,
            on_arrival=touching.reach,
        )
        memory.reverse()  # each is dropped with its file, so that memory ends with its tensors
        try:
            with touching, pool:
                for number, (span, specs) in enumerate(shards):
                    view = memory.pop()
                    for spec in specs:
                        start = 0 if spec.offset is None else max(spec.offset - span.offset, 0)
                        pool.wait(number, start + spec.nbytes if spec.nbytes else 0)
                        self._note_copy(start, spec)
                        yield spec.name, tensor_over(view, start, spec)
                    del view
        finally:
            for text in summed(pool.notes):
                self.note(text)

    def _note_pages(self, buffers: list[Buffer]) -> None:
        for reason in {buffer.refused for buffer in buffers} - {None}:
            self.note(f"no huge pages: {reason}")

    def _note_copy(self, start: int, spec: TensorSpec) -> None:
        if spec.nbytes and not is_aligned(start, dtype_of(spec)):
            self.note("tensors at offsets that their dtype can't have in memory were copied")


def _from_page(span: Span) -> Span:
    """From the beginning of the span's first page: the memory is then congruent with the file."""
    head = span.offset % PAGE if span.length else 0
    return Span(path=span.path, offset=span.offset - head, length=span.length + head)


def span_of(file: WeightFile, specs: list[TensorSpec]) -> Span:
    """The bytes of a file from its first tensor's to its last one's; LoadError for a tensor that
    isn't one run of bytes."""
    begin, end = file.size, 0
    for spec in specs:
        if spec.offset is None:
            raise LoadError(f"{file.path}: tensor {spec.name!r} isn't contiguous in the file")
        if spec.nbytes:
            begin, end = min(begin, spec.offset), max(end, spec.offset + spec.nbytes)
    return Span(path=file.path, offset=begin, length=max(end - begin, 0))
