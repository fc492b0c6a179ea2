"""Reader threads that fill given memory while the caller already uses what has arrived."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from loaders.io.chunks import Chunk, ChunkSource, Span
from loaders.io.sources import OpenSource
from loaders.io.workers import Workers

DEFAULT_BLOCK = 16 << 20


class ReaderPool(Workers):
    """N threads that read each span into its destination, chunk by chunk, in the order given.

    Use it as a context manager: leaving it stops the threads after the chunk in hand and joins
    them, so that nothing is read into the next measurement. Destinations are as long as their
    spans, and congruent with them (address and file offset leave the same remainder by the page
    size): a copy between addresses that are 16 bytes apart within the page runs at a third of the
    rate, and a direct read needs it.
    """

    def __init__(
        self,
        spans: Sequence[Span],
        destinations: Sequence[memoryview],
        *,
        threads: int,
        block_bytes: int = DEFAULT_BLOCK,
        direct: bool = False,
        open_source: OpenSource | None = None,
        on_arrival: Callable[[int], None] = lambda nbytes: None,
    ) -> None:
        """Starts nothing yet. `open_source`: how files are opened, instead of `direct`; spans and
        destinations then begin at pages. `on_arrival` is told by the readers how many bytes of all
        spans have arrived so far. ValueError if a destination's length isn't its span's."""
        for span, into in zip(spans, destinations, strict=True):
            if len(into) != span.length:
                raise ValueError(f"{span.path}: {span.length} bytes into memory of {len(into)}")
        self._spans = spans
        self._into: list[memoryview | None] = list(destinations)
        self._source = ChunkSource(spans, block_bytes, direct=direct, open_source=open_source)
        self._arrived = [0] * len(spans)  # bytes from each span's beginning without a gap
        self._ahead: list[dict[int, int]] = [{} for _ in spans]  # start -> end, behind a gap
        self._on_arrival = on_arrival
        self._arrived_in_all = 0
        self._error: BaseException | None = None
        self._change = threading.Condition()
        super().__init__("reader", threads)

    @property
    def fell_back(self) -> Mapping[str, str]:
        """Path -> why it was not read directly although that was asked for; of finished files."""
        return self._source.fell_back

    @property
    def notes(self) -> Mapping[str, list[str]]:
        """Path -> what is to be told about its reading; of finished files."""
        return self._source.notes

    def wait(self, span: int, nbytes: int | None = None) -> None:
        """Blocks until the first `nbytes` of the span have arrived (all of it by default). Raises
        the first error of any reader at once, whatever had arrived before."""
        needed = self._spans[span].length if nbytes is None else nbytes
        if needed > self._spans[span].length:
            raise ValueError(f"{needed} bytes of a span of {self._spans[span].length}")
        if self._error is None and self._arrived[span] >= needed:
            return
        with self._change:
            self._change.wait_for(lambda: self._error is not None or self._arrived[span] >= needed)
        if self._error is not None:
            raise self._error

    def _stop(self) -> None:
        self._source.stop()

    def close(self) -> None:
        super().close()
        self._source.close()

    def _work(self) -> None:
        try:
            while (taken := self._source.take()) is not None:
                chunk, file = taken
                into = self._into[chunk.span]
                assert into is not None  # is dropped only after the span's last chunk
                part = into[chunk.start : chunk.start + chunk.length]
                file.read(part, chunk.offset, chunk.length)
                del into, part
                self._note(chunk)
                self._source.give_back(chunk)
        except BaseException as error:  # it is raised again in the thread that waits
            self._source.stop()
            with self._change:
                self._error = self._error or error
                self._change.notify_all()

    def _note(self, chunk: Chunk) -> None:
        number = chunk.span
        with self._change:
            self._arrived_in_all += chunk.length
            self._on_arrival(self._arrived_in_all)
            ahead, edge = self._ahead[number], self._arrived[number]
            ahead[chunk.start] = chunk.start + chunk.length
            while edge in ahead:
                edge = ahead.pop(edge)
            self._arrived[number] = edge
            if edge == self._spans[number].length:
                self._into[number] = None  # the memory lives on only through its tensors
            self._change.notify_all()
