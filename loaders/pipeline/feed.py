"""Reader threads that fill slots of a ring which a device copies out of."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from loaders.device.interface import Event
from loaders.io.buffers import PAGE
from loaders.io.chunks import Chunk, ChunkSource, Span
from loaders.io.sources import OpenSource
from loaders.io.workers import Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A block of the ring: `memory` is uint8, shape [block]; `mark` is reached when the last copy
    out of it is done."""

    memory: torch.Tensor
    mark: Event


class Feed(Workers):
    """N threads read the spans block by block, each into the next slot that is free.

    A slot is free again when it was given back and its mark was reached: the thread that reads into
    it waits for that, so that who copies goes on queueing. As a context manager: leaving it stops
    the threads after the block in hand, joins them and closes the files; `notes` is complete then.
    """

    def __init__(
        self,
        spans: Sequence[Span],
        slots: Sequence[Slot],
        *,
        readers: int,
        block_bytes: int,
        direct: bool,
        open_source: OpenSource | None,
    ) -> None:
        """Starts nothing yet. The spans begin at pages, and so do the slots."""
        self._source = ChunkSource(spans, block_bytes, direct=direct, open_source=open_source)
        self._free: queue.SimpleQueue[Slot | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[tuple[Chunk, Slot] | BaseException | None] = (
            queue.SimpleQueue()
        )
        for slot in slots:
            self._free.put(slot)
        if not slots:  # there is nothing to read, and nothing to wait for
            self._free.put(None)
        super().__init__("feed", readers)

    @property
    def notes(self) -> dict[str, list[str]]:
        """Path -> what is to be told about its reading."""
        return self._source.notes

    def blocks(self) -> Iterator[tuple[Chunk, Slot]]:
        """Every block once, in the order of their arrival. The first error of any thread ends it.
        Each slot is to be given back."""
        left = len(self._threads)
        while left:
            item = self._ready.get()
            if item is None:
                left -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item

    def give_back(self, slot: Slot) -> None:
        """Says that all copies out of the slot were queued before its mark."""
        self._free.put(slot)

    def close(self) -> None:
        """Stops and joins the threads and closes the files."""
        super().close()
        self._source.close()

    def _stop(self) -> None:
        self._source.stop()
        self._free.put(None)

    def _work(self) -> None:
        try:
            while (slot := self._free.get()) is not None and (taken := self._source.take()):
                chunk, file = taken
                slot.mark.wait()
                pages = -(-chunk.length // PAGE) * PAGE  # reads of whole pages need no block more
                into = slot.memory.numpy().data[:pages]
                file.read(into, chunk.offset, chunk.length)
                self._source.give_back(chunk)
                self._ready.put((chunk, slot))
                del into
        except BaseException as error:  # it is raised again in the thread that copies
            self._source.stop()
            self._ready.put(error)
        self._free.put(None)  # whoever still waits for a slot ends, too
        self._ready.put(None)
