"""Ways to get at a file's blocks: around the page cache, or wherever they are faster."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from loaders.io.buffers import PAGE
from loaders.io.readers import OpenFile, read_block, read_into
from loaders.system.residency import METHODS, REFUSALS, Measure, choose_method

FINEST = 64 << 10
"""Bytes: a part of a file that isn't wholly in memory or wholly absent is looked at down to here.
Finer mixtures are left to the kernel, which fetches exactly the pages that are absent."""

DIRECT_FROM = 256 << 10
"""Bytes: shorter absent runs between resident ones aren't worth a direct read of their own."""

_FETCH = 128 << 10
"""Bytes asked for at once: the kernel cuts longer requests to its read-ahead size, silently."""


class Source(Protocol):
    """An open file that reader threads take blocks from."""

    def read(self, into: memoryview, offset: int, needed: int) -> None:
        """Fills `into`; address and offset are page-aligned, and only `needed` bytes must be
        there. Lengths that aren't whole pages cost a read more."""

    def close(self) -> None: ...

    @property
    def notes(self) -> list[str]:
        """What a reader of the result must know: why the file wasn't read as asked."""


Part = tuple[int, int, bool | None]
"""(start, length, resident) of a part of a block; None: some of its pages are."""

OpenSource = Callable[[str], Source]


class PlainSource:
    """Through the page cache or around it, as told; ranges of any alignment. Its notes are the bare
    reasons for not reading directly."""

    def __init__(self, path: str, *, direct: bool) -> None:
        self._file = OpenFile(path, direct=direct)

    def read(self, into: memoryview, offset: int, needed: int) -> None:
        read_into(self._file, into[:needed], offset)

    def close(self) -> None:
        self._file.close()

    @property
    def notes(self) -> list[str]:
        return [] if self._file.fell_back is None else [self._file.fell_back]


class DirectSource:
    """Every block around the page cache, also those that it holds."""

    def __init__(self, path: str) -> None:
        self._file = OpenFile(path, direct=True)

    def read(self, into: memoryview, offset: int, needed: int) -> None:
        read_block(self._file, into, offset, needed)

    def close(self) -> None:
        self._file.close()

    @property
    def notes(self) -> list[str]:
        return _fallen(self._file)


class Residents:
    """How to ask the page cache, found out once for each file system: some answers are wrong (see
    loaders.system.residency). One page is read for it."""

    def __init__(self, methods: Mapping[str, Measure] = METHODS) -> None:
        self._methods = methods
        self._known: dict[int, tuple[Measure | None, str]] = {}
        self._lock = threading.Lock()

    def method(self, path: str) -> tuple[Measure | None, str]:
        """(the call, or None and then the reason). OSError if the file can't be read."""
        status = Path(path).stat()
        if not status.st_size:
            return None, "the file is empty"
        with self._lock:
            if status.st_dev not in self._known:
                found = choose_method(Path(path), methods=self._methods, sample_bytes=PAGE)
                self._known[status.st_dev] = found.measure, found.reason or ""
            return self._known[status.st_dev]

    def open(self, path: str) -> AdaptiveSource:
        return AdaptiveSource(path, *self.method(path))


class AdaptiveSource:
    """What the page cache holds comes from there, what it lacks around it.

    It is asked block by block, just before each is read: what other processes fetch or push out
    meanwhile is taken into account, and nothing is read twice.
    """

    def __init__(self, path: str, measure: Measure | None, reason: str) -> None:
        self._direct = OpenFile(path, direct=True)
        try:
            self._cached = OpenFile(path)
        except OSError:
            self._direct.close()
            raise
        self._measure = measure
        self._reason = reason
        self._unadvised: str | None = None
        # Reading resident pages must not make the kernel fetch the absent ones behind them.
        self._advise(0, 0, os.POSIX_FADV_RANDOM)

    def read(self, into: memoryview, offset: int, needed: int) -> None:
        for start, length, resident in self._parts(offset, len(into)):
            wanted = min(needed - start, length)
            if wanted <= 0:
                return
            part = into[start : start + length]
            if resident is None:
                self._fetch(offset + start, length)
            read_block(
                self._direct if resident is False else self._cached, part, offset + start, wanted
            )

    def close(self) -> None:
        self._direct.close()
        self._cached.close()

    @property
    def notes(self) -> list[str]:
        notes = _fallen(self._direct)
        if self._unadvised is not None:
            notes.append(self._unadvised)
        if self._measure is None:
            notes.append(f"assumed that nothing is in the page cache: {self._reason}")
        return notes

    def _parts(self, offset: int, length: int) -> list[Part]:
        """The runs that a block falls into; short absent ones join what lies beside them."""
        runs: list[Part] = []
        for start, size, resident in self._looked_at(offset, 0, length):
            _append(runs, start, size, resident)
        if len(runs) == 1:
            return runs
        parts: list[Part] = []
        for start, size, resident in runs:
            short = resident is False and size < DIRECT_FROM
            _append(parts, start, size, None if short else resident, mix=True)
        return parts

    def _looked_at(self, offset: int, start: int, length: int) -> Iterator[Part]:
        found = self._resident(offset + start, length)
        if found <= 0:
            yield start, length, False
        elif found >= length:
            yield start, length, True
        elif length <= FINEST:
            yield start, length, None
        else:
            half = -(-length // 2 // FINEST) * FINEST
            yield from self._looked_at(offset, start, half)
            yield from self._looked_at(offset, start + half, length - half)

    def _resident(self, offset: int, length: int) -> int:
        if self._measure is None:
            return 0
        try:
            return self._measure(self._cached.fd, offset, length)
        except OSError as error:
            if error.errno not in REFUSALS:
                raise
            self._measure, self._reason = None, str(error)
            return 0

    def _fetch(self, offset: int, length: int) -> None:
        """Starts reading the absent pages of a range, and no others, all at once."""
        for start in range(offset, offset + length, _FETCH):
            size = min(_FETCH, offset + length - start)
            self._advise(start, size, os.POSIX_FADV_WILLNEED)

    def _advise(self, offset: int, length: int, advice: int) -> None:
        try:
            os.posix_fadvise(self._cached.fd, offset, length, advice)
        except OSError as error:  # the bytes are the same without it
            self._unadvised = f"read-ahead isn't under control, fadvise: {error.strerror}"


def summed(notes: Mapping[str, list[str]]) -> list[str]:
    """The notes of many files: each text once, with the number of files that it is about; of many
    texts the first."""
    counts = Counter(text for texts in notes.values() for text in texts)
    texts = [f"{text} ({count} file(s) of the load)" for text, count in counts.items()]
    return texts[:3] + ([f"and {len(texts) - 3} more like these"] if len(texts) > 3 else [])


def _append(
    parts: list[Part], start: int, size: int, resident: bool | None, *, mix: bool = False
) -> None:
    """Adds a part, to the last one where it is of the same kind or, with `mix`, where both are
    read through the page cache."""
    if parts:
        before, length, kind = parts[-1]
        if kind is resident or (mix and False not in (kind, resident)):
            parts[-1] = before, length + size, kind if kind is resident else None
            return
    parts.append((start, size, resident))


def _fallen(file: OpenFile) -> list[str]:
    return [f"not read directly: {file.fell_back}"] if file.fell_back is not None else []
