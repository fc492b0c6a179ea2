"""Empties and fills the page cache for given files. What it did is measured, never assumed."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.measuring.cores import effective_cores
from loaders.system.files import Root, under
from loaders.system.pagecalls import PAGE
from loaders.system.residency import UNKNOWN, Residency

_BLOCK = 8 << 20
_CHUNK = 256 << 20  # what one thread reads of a file before it takes the next piece of work
_IN_FLIGHT = 0.05  # seconds: longer than a read takes
FOLIO = 8 << 20
"""Bytes: no folio of the page cache is larger, with pages of 4 KiB."""

# Dirty pages that can't be written out here because nothing can be: no reason to stop.
_NOTHING_TO_SYNC = frozenset({errno.EROFS, errno.EINVAL, errno.EBADF, errno.ENOSYS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """`remaining` is what is still resident, in bytes of `total`, None if that isn't known: pages
    that another process has mapped, dirty pages that couldn't be written out, memory file systems.
    `notes` say what the kernel refused on the way."""

    total: int
    remaining: int | None
    notes: tuple[str, ...]


def evict(
    paths: Sequence[Path],
    residency: Residency = UNKNOWN,
    *,
    rounds: int = 5,
    pause: float = 0.02,
) -> Eviction:
    """Asks the kernel to drop the files from the page cache, and says what stayed.

    Each round writes dirty pages out first, because the kernel keeps those. Pages can also stay
    because they wait in a CPU's own list or are being read ahead right now: hence several rounds,
    until nothing is left or nothing changes. (An overlay's fsync leaves its lower layers alone:
    what was just written there stays until the kernel gets to it.)

    OSError if a file can't be opened or written out.
    """
    total = sum(path.stat().st_size for path in paths)
    notes: dict[str, None] = {}  # a set that keeps its order
    remaining = before = None
    for turn in range(rounds):
        for path in paths:
            note = _drop(path)
            if note is not None:
                notes[note] = None
        remaining = _resident(paths, residency)
        if remaining == 0 or (turn >= 2 and remaining == before):
            break
        if turn + 1 < rounds:
            time.sleep(pause)
        before = remaining
    return Eviction(total=total, remaining=remaining, notes=tuple(notes))


def _resident(paths: Sequence[Path], residency: Residency) -> int | None:
    known = [residency.resident_bytes(path) for path in paths]
    found = [size for size in known if size is not None]
    return sum(found) if len(found) == len(known) else None


def _drop(path: Path) -> str | None:
    """One round for one file; what was refused, or None."""
    note = None
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _NOTHING_TO_SYNC:
                raise
            note = f"{path}: fsync: {error.strerror}"
        # Length 0 is "to the end", with the last page even where the file ends within it.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    return note


def drop_caches(root: Root = "/") -> str | None:
    """Drops the page cache of the whole host. To be called only when the user asked for it: every
    other process pays. Returns why it couldn't be done, or None when it was."""
    os.sync()
    switch = under(root, "/proc/sys/vm/drop_caches")
    try:
        # 1 is the page cache alone: dentries and inodes (2) aren't what a cold load waits for.
        # No O_CREAT: a missing file is a reason, not something to make.
        descriptor = os.open(switch, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"1\n")
        finally:
            os.close(descriptor)
    except OSError as error:
        return (
            f"can't write {switch}: {error.strerror}. It needs root outside a container; without "
            "--drop-caches the files themselves are evicted, which needs no privilege"
        )
    return None


def warm(
    paths: Sequence[Path], residency: Residency = UNKNOWN, *, threads: int | None = None
) -> float | None:
    """Reads the files into the page cache with plain reads in 8 MiB blocks, and returns the
    resident fraction (below 1 where memory doesn't hold them; None if it can't be known).

    OSError if a file can't be read.
    """
    work = [
        (path, start) for path in paths for start in range(0, max(path.stat().st_size, 1), _CHUNK)
    ]
    pool = ThreadPoolExecutor(max_workers=threads or min(8, effective_cores()))
    try:
        for _ in pool.map(_read_chunk, work):
            pass
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C the queue must not be read to its end
    return residency.resident_fraction(paths)


def fill_partly(paths: Sequence[Path], fraction: float, stretch: int) -> None:
    """Makes the first `fraction` of every `stretch` bytes of each file resident, and nothing beside
    it; evict first, since what is there already may stay. OSError.

    As an ordinary reader would have left it: what the kernel read ahead of a stream lies in large
    folios, which are copied twice as fast as single pages are. It reads too far, which is dropped
    again; large folios only whole, so that the rests beside multiples of FOLIO are read page by
    page.
    """
    ranges = {path: stretches(path.stat().st_size, fraction, stretch) for path in paths}
    for path, found in ranges.items():
        with _opened(path) as descriptor:
            for start, end in _cores(found):
                _read_range(descriptor, start, end)
    for pause in (0.0, _IN_FLIGHT):  # what is being read ahead right now can't be dropped yet
        time.sleep(pause)
        for path, found in ranges.items():
            with _opened(path) as descriptor:
                for start, end in _between(_cores(found), path.stat().st_size):
                    os.posix_fadvise(descriptor, start, end - start, os.POSIX_FADV_DONTNEED)
    for path, found in ranges.items():
        with _opened(path) as descriptor:
            # The kernel reads ahead of what looks like a stream, unless it is told otherwise.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            for start, end in found:
                first, last = _core(start, end) or (end, end)
                _read_range(descriptor, start, first)
                _read_range(descriptor, last, end)


def _cores(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return [core for start, end in ranges if (core := _core(start, end)) is not None]


def _core(start: int, end: int) -> tuple[int, int] | None:
    """What of a range lies between multiples of FOLIO."""
    first, last = -(-start // FOLIO) * FOLIO, end // FOLIO * FOLIO
    return (first, last) if first < last else None


def _between(ranges: Sequence[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """The rest of a file of `size` bytes."""
    edges = [0, *(edge for pair in ranges for edge in pair), size]
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        if start < end:
            yield start, end


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def stretches(size: int, fraction: float, stretch: int) -> list[tuple[int, int]]:
    """The ranges (first byte, first byte after) of a file of `size` bytes that are that fraction of
    it, in whole pages: one at the start of each stretch. The share that whole pages can't hold is
    carried over to the next stretch, so that the sum is right to a page."""
    pages = -(-size // PAGE)
    step = max(-(-stretch // PAGE), 1)
    found: list[tuple[int, int]] = []
    given = 0
    for first in range(0, pages, step):
        last = min(first + step, pages)
        here = min(max(round(fraction * last) - given, 0), last - first)
        if here:
            found.append((first * PAGE, min((first + here) * PAGE, size)))
        given += here
    return found


def _read_range(descriptor: int, start: int, end: int) -> None:
    block = memoryview(bytearray(min(_BLOCK, end - start)))
    while start < end:
        got = os.preadv(descriptor, [block[: min(len(block), end - start)]], start)
        if got == 0:
            return
        start += got


def _read_chunk(item: tuple[Path, int]) -> None:
    path, start = item
    block = bytearray(_BLOCK)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        offset = start
        while offset < start + _CHUNK:
            got = os.preadv(descriptor, [block], offset)
            if got == 0:
                return
            offset += got
    finally:
        os.close(descriptor)
