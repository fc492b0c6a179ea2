"""Where a stream of tensors lies in a ring of reused memory, and when each part may be overwritten.

Pure arithmetic over the manifest's offsets. The rules:

- The ring is one region, filled from its beginning to its end again and again, in the order in
  which the tensors are wanted.
- A file's bytes keep their place within the alignment unit, so that direct reads need no copy.
- Tensors that follow one another in a file lie one behind the other in the ring, and are read
  together in blocks counted from the first one's beginning: many small ones cost one read, and no
  block is cut short but the last one before the ring begins anew.
- Every tensor is contiguous: one that would cross the ring's end begins anew at its beginning (the
  alignment unit that it shares with the tensor before is read twice).
- A read may begin once the tensors that it overwrites were given up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

_JOIN_UNITS = 16
"""Bytes between two tensors that nobody asked for are read through up to so many alignment units,
since a read of its own costs more; longer gaps are skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A tensor's bytes: `nbytes` from `offset` of file number `file`. Given in the order in which
    they are wanted, mostly that of files and offsets."""

    file: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """`nbytes` of memory that is read into in blocks of at most `block` bytes; file offsets and
    ring positions are congruent modulo `align`. Both divide the larger ones."""

    nbytes: int
    block: int
    align: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """`length` bytes from `offset` of file number `file` go to `position` of the ring.

    Offset, length and position are multiples of the alignment. `needed` is how many of the bytes
    belong to tensors or lie between them: the file may end behind those. `after` tensors, counted
    from the first, must have been given up before. `last`: no more reads of this file follow.
    """

    file: int
    offset: int
    length: int
    needed: int
    position: int
    after: int
    last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A tensor's `position` in the ring, and how many reads, counted from the first, must have
    arrived for it to be there."""

    position: int
    reads: int


@dataclass(slots=True, kw_only=True)
class _Segment:
    """Tensors `first` to `last` of one file, without a break in the ring. `start` counts the
    ring's bytes on and on, lap after lap."""

    file: int
    offset: int
    end: int
    start: int
    first: int
    last: int


def ring_for(extents: Sequence[Extent], *, wanted: int, block: int, align: int) -> Ring:
    """A ring of `wanted` bytes, or of as many as the tensors need; no more than all of them need
    together.

    Less than the largest tensor and two blocks couldn't work at all. An eighth more is filled while
    the largest is in use: about the rate of storage to that of memory. Where the ring holds two
    neighbours, the second needn't wait until the first was used: it does where that pays.
    """
    if align <= 0 or block <= 0 or block % align:
        raise ValueError(f"block ({block}) must be a multiple of align ({align})")
    sizes = [
        _up(extent.offset + extent.nbytes, align) - _down(extent.offset, align)
        for extent in extents
        if extent.nbytes
    ]
    largest = max(sizes, default=0)
    least = max(wanted, largest + largest // 8 + 2 * block)
    pairs = [(size + following + 2 * block, size) for size, following in pairwise(sizes)]
    nbytes = min(_worth_holding(pairs, least), sum(sizes) + 2 * block)
    return Ring(nbytes=_up(nbytes, block), block=block, align=align)


def _worth_holding(pairs: list[tuple[int, int]], least: int) -> int:
    """The size from `least` on that costs the least time. `pairs`: the ring that two neighbours
    need, and the first one's bytes. A ring that is too small for them costs the use of these bytes;
    a larger ring its first touch, about twice as much a byte."""
    larger = sorted((pair for pair in pairs if pair[0] > least), reverse=True)
    costs: list[tuple[int, int]] = []
    waited_for = 0
    for nbytes, first in [*larger, (least, 0)]:
        costs.append((2 * nbytes + waited_for, nbytes))
        waited_for += first
    return min(costs)[1]


def plan_reads(extents: Sequence[Extent], ring: Ring) -> Iterator[Read]:
    """Every read, in the order in which they are to be started."""
    live: deque[tuple[int, int]] = deque()  # (start, last tensor) of the reads in the ring
    after = 0
    final = {extent.file: number for number, extent in enumerate(extents) if extent.nbytes}
    for segment in _segments(extents, ring):
        whole = _up(segment.end, ring.align)
        offsets = range(segment.offset, whole, ring.block)
        for offset, user in zip(offsets, _last_users(extents, segment, ring), strict=True):
            stop = min(offset + ring.block, whole)
            start = segment.start + offset - segment.offset
            while live and live[0][0] < start + stop - offset - ring.nbytes:
                after = max(after, live.popleft()[1] + 1)
            live.append((start, user))
            yield Read(
                file=segment.file,
                offset=offset,
                length=stop - offset,
                needed=min(stop, segment.end) - offset,
                position=start % ring.nbytes,
                after=after,
                last=stop == whole and segment.last == final[segment.file],
            )


def plan_places(extents: Sequence[Extent], ring: Ring) -> Iterator[Place]:
    """The place of each tensor, in order. An empty one needs none and waits for nothing."""
    number = reads = 0
    for segment in _segments(extents, ring):
        while number <= segment.last:
            extent = extents[number]
            number += 1
            if not extent.nbytes:
                yield Place(position=0, reads=0)
                continue
            position = (segment.start + extent.offset - segment.offset) % ring.nbytes
            end = extent.offset + extent.nbytes
            yield Place(position=position, reads=reads + _blocks(segment, end, ring))
        reads += _blocks(segment, segment.end, ring)
    for _ in extents[number:]:
        yield Place(position=0, reads=0)


def _segments(extents: Sequence[Extent], ring: Ring) -> Iterator[_Segment]:
    gap = min(_JOIN_UNITS * ring.align, ring.block)
    segment: _Segment | None = None
    for number, extent in enumerate(extents):
        if not extent.nbytes:
            continue
        end = extent.offset + extent.nbytes
        if (
            segment is not None
            and extent.file == segment.file
            and segment.offset <= extent.offset < segment.end + gap
            and _fits(segment.start, _up(end, ring.align) - segment.offset, ring)
        ):
            segment.end, segment.last = max(segment.end, end), number
            continue
        start = 0
        if segment is not None:
            yield segment
            start = segment.start + _up(segment.end, ring.align) - segment.offset
        offset = _down(extent.offset, ring.align)
        if not _fits(start, _up(end, ring.align) - offset, ring):
            start = _up(start, ring.nbytes)
        segment = _Segment(
            file=extent.file, offset=offset, end=end, start=start, first=number, last=number
        )
    if segment is not None:
        yield segment


def _last_users(extents: Sequence[Extent], segment: _Segment, ring: Ring) -> list[int]:
    """For each of the segment's blocks the tensor that needs it last, whose bytes needn't be its
    last ones: within a segment, tensors may be wanted in another order than that of the file."""
    users = [segment.first] * _blocks(segment, segment.end, ring)
    for number in range(segment.first, segment.last + 1):
        extent = extents[number]
        if extent.nbytes:
            begin = (extent.offset - segment.offset) // ring.block
            end = _blocks(segment, extent.offset + extent.nbytes, ring)
            users[begin:end] = [number] * (end - begin)
    return users


def _blocks(segment: _Segment, end: int, ring: Ring) -> int:
    """How many of the segment's reads bring its bytes up to `end` of the file."""
    return -(-(end - segment.offset) // ring.block)


def _fits(start: int, length: int, ring: Ring) -> bool:
    return start % ring.nbytes + length <= ring.nbytes


def _down(value: int, step: int) -> int:
    return value // step * step


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
