"""Reader threads that keep a ring filled ahead of the one who uses it, in the order planned."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from loaders.io.layout import Read
from loaders.io.sources import OpenSource, Source
from loaders.io.workers import Workers

OPEN_AHEAD = 2
"""Files opened before their first read is due, so that none waits for a slow open. Few: a
checkpoint has more shards than a process may have open files."""


class _File:
    """A file while it is read: opened by a thread of its own, closed with its last read."""

    def __init__(self, opening: Future[Source]) -> None:
        self.opening = opening
        self.at_work = 0
        self.all_taken = False


class Refill(Workers):
    """N threads carry out the planned reads into the ring `memory`, several at once.

    The one who uses the ring calls `wait` before it looks at what reads have brought and
    `give_up` when it is done with tensors; reads that overwrite those begin then. As a context
    manager: leaving it stops the threads after the read in hand, joins them and closes the files.
    `notes`: path -> what is to be told about the file's reading; complete afterwards.
    """

    def __init__(
        self,
        paths: Sequence[str],
        reads: Iterator[Read],
        memory: memoryview,
        *,
        open_source: OpenSource,
        readers: int,
    ) -> None:
        """Starts nothing yet. `reads` name their files by their number in `paths`."""
        self._paths = paths
        self._reads = enumerate(reads)
        self._memory = memory
        self._open_source = open_source
        self._files: dict[int, _File] = {}
        self._opened = 0  # files handed to the opener
        self._lock = threading.Lock()
        self._data = threading.Condition(self._lock)
        self._space = threading.Condition(self._lock)
        self._arrived = 0  # reads from the first on, without a gap
        self._ahead: set[int] = set()  # reads behind a gap
        self._awaited = 0
        self._given_up = 0
        self._stopped = False
        self._error: BaseException | None = None
        self._opener = ThreadPoolExecutor(max_workers=1, thread_name_prefix="opener")
        self.notes: dict[str, list[str]] = {}
        super().__init__("refill", readers)

    def wait(self, reads: int) -> None:
        """Blocks until that many reads, counted from the first, have arrived. Raises the first
        error of any thread at once."""
        if self._arrived < reads or self._error is not None:
            with self._lock:
                self._awaited = reads
                self._data.wait_for(lambda: self._error is not None or self._arrived >= reads)
        if self._error is not None:
            raise self._error

    def give_up(self, tensors: int) -> None:
        """Says that so many tensors, counted from the first, may be overwritten."""
        with self._lock:
            self._given_up = tensors
            self._space.notify_all()

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._space.notify_all()

    def close(self) -> None:
        super().close()
        self._opener.shutdown(cancel_futures=True)
        for number in list(self._files):
            self._close(number)

    def _work(self) -> None:
        try:
            while (taken := self._take()) is not None:
                number, read, file = taken
                into = self._memory[read.position : read.position + read.length]
                file.opening.result().read(into, read.offset, read.needed)
                del into  # the ring must not outlive its last tensor
                self._arrive(number, read, file)
        except BaseException as error:  # it is raised again in the thread that waits
            with self._lock:
                self._stopped = True
                self._error = self._error or error
                self._data.notify_all()
                self._space.notify_all()

    def _take(self) -> tuple[int, Read, _File] | None:
        """The next read and its file, once there is room for it; None when nothing is left."""
        with self._lock:
            taken = None if self._stopped else next(self._reads, None)
            if taken is None:
                return None
            number, read = taken
            self._open_up_to(read.file + 1 + OPEN_AHEAD)
            file = self._files[read.file]
            file.at_work += 1
            file.all_taken = read.last
            self._space.wait_for(lambda: self._stopped or self._given_up >= read.after)
            return None if self._stopped else (number, read, file)

    def _open_up_to(self, count: int) -> None:
        while self._opened < min(count, len(self._paths)):
            path = self._paths[self._opened]
            self._files[self._opened] = _File(self._opener.submit(self._open_source, path))
            self._opened += 1

    def _arrive(self, number: int, read: Read, file: _File) -> None:
        with self._lock:
            self._ahead.add(number)
            while self._arrived in self._ahead:
                self._ahead.remove(self._arrived)
                self._arrived += 1
            if self._arrived >= self._awaited:
                self._data.notify_all()
            file.at_work -= 1
            done = file.all_taken and not file.at_work
        if done:
            self._close(read.file)

    def _close(self, number: int) -> None:
        opening = self._files.pop(number).opening
        if opening.cancelled() or opening.exception() is not None:
            return  # whoever read from it has said so
        source = opening.result()
        if notes := source.notes:
            self.notes[self._paths[number]] = notes
        source.close()
