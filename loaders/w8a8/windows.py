"""Ranges of files read window by window into one reused buffer, each by several threads.

Reading and what is done with the bytes take turns, so that each has a time of its own. What the
page cache holds comes from there, what it lacks around it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from loaders.io.buffers import PAGE, allocate
from loaders.io.sources import OpenSource, Residents, Source
from loaders.slicing.execute import Raw

WINDOW = 64 << 20
"""Bytes read at a time: so many that starting and ending the threads' work is nothing beside it."""

BLOCK = 4 << 20


class Windows:
    """A context manager. `read` gives a range's bytes, valid until the next `read`. `notes`: path
    -> what is to be told of the file's reading; `nbytes`: what was asked of the files."""

    def __init__(self, *, threads: int, open_source: OpenSource | None = None) -> None:
        self._buffer = allocate(WINDOW + 2 * PAGE, huge=True)
        self._pool = ThreadPoolExecutor(max_workers=max(threads, 1))
        self._open = open_source or Residents().open
        self._path = ""
        self._file: Source | None = None
        self.notes: dict[str, list[str]] = {}
        self.nbytes = 0

    def read(self, path: str, offset: int, length: int) -> Raw:
        """`length` bytes (WINDOW at most) from `offset` on, uint8. OSError, TruncatedError."""
        if length > WINDOW:
            raise ValueError(f"a window has at most {WINDOW} bytes, asked for {length}")
        file = self._opened(path)
        first = offset % PAGE
        begin, end = offset - first, offset + length  # sources want offsets at pages

        def fill(at: int) -> None:
            needed = min(BLOCK, end - at)
            room = -(-needed // PAGE) * PAGE
            file.read(self._buffer.view(at - begin, room), at, needed)

        for done in [self._pool.submit(fill, at) for at in range(begin, end, BLOCK)]:
            done.result()
        self.nbytes += length
        return self._buffer.array()[first : first + length]

    def _opened(self, path: str) -> Source:
        if self._file is None or path != self._path:
            self._close_file()
            self._file, self._path = self._open(path), path
        return self._file

    def _close_file(self) -> None:
        if self._file is not None:
            if notes := self._file.notes:
                self.notes.setdefault(self._path, notes)
            self._file.close()
            self._file = None

    def __enter__(self) -> Windows:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown()
        self._close_file()
