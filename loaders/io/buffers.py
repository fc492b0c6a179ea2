"""Page-aligned anonymous memory, and what kind of pages the kernel made of it.

Fresh memory costs about as much as reading into it: the kernel clears each page at its first
touch. So buffers are made, touched and freed here by explicit calls that can be timed apart.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

PAGE = mmap.PAGESIZE
HUGE_PAGE = 2 << 20  # of x86-64, and of arm64 with 4 KiB pages
_MADV_POPULATE_WRITE = 23  # Linux 5.14; Python's mmap module has no name for it
_libc = ctypes.CDLL(None, use_errno=True)

Touch = Literal["store", "populate"]


class Buffer:
    """`nbytes` of private memory at `address`, which is a multiple of PAGE (of HUGE_PAGE where huge
    pages were asked for). Not touched yet: no physical memory stands behind it.

    `refused` says why the kernel didn't take the wish about page size, else None.
    """

    def __init__(self, mapping: mmap.mmap, start: int, nbytes: int, refused: str | None) -> None:
        self._mapping: mmap.mmap | None = mapping
        self._start = start
        self.nbytes = nbytes
        self.address = _address(mapping) + start
        self.refused = refused

    def view(self, offset: int = 0, nbytes: int | None = None) -> memoryview:
        """Writable bytes [offset, offset + nbytes), to the end by default. Whatever is made over
        the view (numpy array, torch tensor) keeps the memory alive through it, so never
        `release()` a view that was handed on. ValueError outside the buffer or after close()."""
        nbytes = self.nbytes - offset if nbytes is None else nbytes
        if self._mapping is None:
            raise ValueError("the buffer is closed")
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise ValueError(f"[{offset}, +{nbytes}) is outside a buffer of {self.nbytes} bytes")
        begin = self._start + offset
        return memoryview(self._mapping)[begin : begin + nbytes]

    def array(self, offset: int = 0, nbytes: int | None = None) -> npt.NDArray[np.uint8]:
        """The same bytes as a numpy array, uint8, shape [nbytes]."""
        return np.frombuffer(self.view(offset, nbytes), dtype=np.uint8)

    def close(self) -> bool:
        """Gives the memory back now and returns True; False if a view, array or tensor still holds
        it: then it goes back with the last of them."""
        mapping, self._mapping = self._mapping, None
        if mapping is None:
            return True
        try:
            mapping.close()
        except BufferError:
            return False
        return True

    def __enter__(self) -> Buffer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def allocate(nbytes: int, *, huge: bool | None = None) -> Buffer:
    """Maps `nbytes` of fresh private memory. `huge` True asks for transparent huge pages, False for
    small ones, None leaves it to the host's setting. MemoryError if the kernel has none."""
    slack = HUGE_PAGE if huge else 0
    try:
        mapping = mmap.mmap(-1, max(nbytes, 1) + slack, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(
            f"can't map {nbytes} bytes of memory ({error}); take a smaller checkpoint, or a loader "
            "whose ownership is `mapped`"
        ) from error
    start = -_address(mapping) % HUGE_PAGE if huge else 0
    refused = None if huge is None else _advise(mapping, start, huge)
    return Buffer(mapping, start, nbytes, refused)


def _advise(mapping: mmap.mmap, start: int, huge: bool) -> str | None:
    name = "MADV_HUGEPAGE" if huge else "MADV_NOHUGEPAGE"
    try:
        mapping.madvise(getattr(mmap, name), start, len(mapping) - start)
    except OSError as error:  # a kernel built without them
        return f"{name}: {error.strerror}"
    return None


def _address(mapping: mmap.mmap) -> int:
    # The ctypes object goes at once, and its hold on the mapping with it.
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))


def touch(buffer: Buffer, threads: int = 1, *, how: Touch = "store") -> Touch:
    """First touch of every page of a fresh buffer, its parts spread over `threads`.

    `store` writes a zero byte into each page, as a program does; `populate` asks the kernel for all
    pages at once (MADV_POPULATE_WRITE). Returns what was done: `store` where the kernel is older
    than Linux 5.14. MemoryError if there aren't enough pages.
    """
    if how == "populate" and not populates():
        how = "store"
    act: Callable[[Buffer, int, int], None] = populate if how == "populate" else _store
    spans = _spans(buffer.nbytes, threads)
    with ThreadPoolExecutor(max_workers=threads) as pool:
        for future in [pool.submit(act, buffer, begin, end) for begin, end in spans]:
            future.result()
    return how


def _spans(nbytes: int, parts: int) -> list[tuple[int, int]]:
    """Cuts [0, nbytes) at multiples of the huge page, so that no page is touched by two threads."""
    step = -(-nbytes // max(parts, 1))
    step = max(-(-step // HUGE_PAGE) * HUGE_PAGE, HUGE_PAGE)
    return [(begin, min(begin + step, nbytes)) for begin in range(0, nbytes, step)]


def _store(buffer: Buffer, begin: int, end: int) -> None:
    buffer.array(begin, end - begin)[::PAGE] = 0  # numpy lets the other threads run meanwhile


def populate(buffer: Buffer, begin: int, end: int) -> None:
    """First touch of bytes [begin, end), `begin` at a page, in one call that other threads may go
    on during; pages that are there already stay as they are. MemoryError if there aren't enough."""
    # Through ctypes because mmap.madvise() keeps the interpreter's lock.
    length = -(-(end - begin) // PAGE) * PAGE
    if _madvise(buffer.address + begin, length, _MADV_POPULATE_WRITE) != 0:
        raise MemoryError(f"can't populate {length} bytes: {os.strerror(ctypes.get_errno())}")


def populates() -> bool:
    """Whether this kernel can `populate` (Linux 5.14)."""
    with allocate(PAGE) as probe:
        return _madvise(probe.address, PAGE, _MADV_POPULATE_WRITE) == 0


def _madvise(address: int, length: int, advice: int) -> int:
    call: Any = _libc.madvise
    return int(call(ctypes.c_void_p(address), ctypes.c_size_t(length), ctypes.c_int(advice)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PageKind:
    """kB of the kernel's mappings that hold a buffer. Neighbouring anonymous memory may share its
    mapping, so these can exceed the buffer's own size."""

    mapped_kb: int
    resident_kb: int
    huge_kb: int


def page_kind(buffer: Buffer, smaps: Path = Path("/proc/self/smaps")) -> PageKind:
    """What the buffer really lies in, from smaps: `huge_kb` is its AnonHugePages. The proof that
    asking for huge pages gave any: a fragmented host grants them in part or not at all."""
    return _in_ranges([(buffer.address, buffer.address + buffer.nbytes)], smaps)


def pages_under(pieces: Sequence[memoryview], smaps: Path = Path("/proc/self/smaps")) -> PageKind:
    """The same for writable pieces of memory; a mapping that holds several counts once."""
    starts = [(ctypes.addressof(ctypes.c_char.from_buffer(one)), len(one)) for one in pieces if one]
    return _in_ranges([(start, start + nbytes) for start, nbytes in starts], smaps)


def _in_ranges(ranges: Sequence[tuple[int, int]], smaps: Path) -> PageKind:
    totals = {"Size": 0, "Rss": 0, "AnonHugePages": 0}
    inside = False
    for line in smaps.read_text().splitlines():
        key, _, rest = line.partition(":")
        if key in totals:
            totals[key] += int(rest.split()[0]) if inside else 0
        elif "-" in (span := line.split(" ", 1)[0]):
            low, high = (int(edge, 16) for edge in span.split("-"))
            inside = any(low < end and start < high for start, end in ranges)
    return PageKind(
        mapped_kb=totals["Size"], resident_kb=totals["Rss"], huge_kb=totals["AnonHugePages"]
    )
