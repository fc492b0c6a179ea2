"""Cutting files into chunks, and handing the chunks to reader threads one by one."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from loaders.io.buffers import PAGE
from loaders.io.sources import OpenSource, PlainSource, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """`length` bytes of a file from `offset` on."""

    path: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A part of span number `span`: `length` bytes from `offset` of its file, which lie `start`
    bytes behind the span's beginning."""

    span: int
    offset: int
    start: int
    length: int


def plan_chunks(spans: Sequence[Span], block_bytes: int) -> Iterator[Chunk]:
    """Cuts the spans in order at the file offsets that are multiples of `block_bytes`.

    Cutting by file offset, not by length, keeps every inner edge aligned for direct reads whatever
    the header's size. `block_bytes` is a multiple of the page size; ValueError otherwise.
    """
    if block_bytes <= 0 or block_bytes % PAGE:
        raise ValueError(f"block_bytes must be a multiple of {PAGE}, got {block_bytes}")
    for number, span in enumerate(spans):
        offset, end = span.offset, span.offset + span.length
        while offset < end:
            stop = min((offset // block_bytes + 1) * block_bytes, end)
            yield Chunk(
                span=number, offset=offset, start=offset - span.offset, length=stop - offset
            )
            offset = stop


class _Shared:
    """A span's file, shared by the threads that read it. Its own lock, because opening can take
    long (network file systems) and must not hold up those who read other files."""

    def __init__(self, left: int) -> None:
        self.lock = threading.Lock()
        self.left = left
        self.file: Source | None = None


class ChunkSource:
    """Gives out chunks in order to any number of threads, each with its open file.

    A file is opened when its first chunk is taken and closed when its last one was given back, so
    that no more files are open than threads at work: a checkpoint has more shards than a process
    may have open files. `open_source` opens them, else they are read through the page cache, or
    around it with `direct`. `notes`: path -> what is to be told of closed files.
    """

    def __init__(
        self,
        spans: Sequence[Span],
        block_bytes: int,
        *,
        direct: bool = False,
        open_source: OpenSource | None = None,
    ) -> None:
        self._spans = spans
        self._chunks = plan_chunks(spans, block_bytes)
        self._open = open_source or partial(PlainSource, direct=direct)
        self._lock = threading.Lock()
        self._shared: dict[int, _Shared] = {}
        self._stopped = False
        self.notes: dict[str, list[str]] = {}

    @property
    def fell_back(self) -> dict[str, str]:
        """Path -> why it was not read directly; of closed files."""
        return {path: notes[0] for path, notes in self.notes.items()}

    def take(self) -> tuple[Chunk, Source] | None:
        """The next chunk and its file, or None when there is nothing left to read."""
        with self._lock:
            chunk = None if self._stopped else next(self._chunks, None)
            if chunk is None:
                return None
            span = self._spans[chunk.span]
            shared = self._shared.setdefault(chunk.span, _Shared(span.length))
        with shared.lock:
            if shared.file is None:
                shared.file = self._open(span.path)
            return chunk, shared.file

    def give_back(self, chunk: Chunk) -> None:
        """Says that the chunk was read."""
        shared = self._shared[chunk.span]
        with shared.lock:
            shared.left -= chunk.length
            if shared.left == 0:
                self._close(chunk.span)

    def stop(self) -> None:
        """Lets `take` return None from now on."""
        with self._lock:
            self._stopped = True

    def close(self) -> None:
        """Closes what is still open. Only when no thread reads any more."""
        self.stop()
        for number in list(self._shared):
            self._close(number)

    def _close(self, number: int) -> None:
        file = self._shared.pop(number).file
        if file is None:
            return
        if notes := file.notes:
            self.notes.setdefault(self._spans[number].path, notes)
        file.close()
