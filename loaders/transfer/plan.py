"""Which bytes go together to a device. Pure arithmetic over sizes in bytes.

Two ways to group tensors: fills of a bounded ring of slots (each tensor has its own memory on the
device), and buckets (tensors lie side by side in one piece of device memory, and are views of it).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ALIGN = 512
"""Bytes: where a tensor may begin in device memory. CUDA's allocator gives multiples of 512, and
Ascend's too; vector code and copy engines rely on it."""

SLOT_ALIGN = 64
"""Bytes: where a part may begin in a slot: a line of the CPU's cache, which copy engines fetch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """`nbytes` from `start` of tensor number `tensor`, at `position` of what it is put into."""

    tensor: int
    start: int
    position: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """`nbytes` of device memory with whole tensors in it (`start` is 0), in their order."""

    nbytes: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """What is put into a slot at once: its first `nbytes`. Those of a bucket go in one piece to
    `offset` of bucket number `bucket`; without one, each part goes to its tensor."""

    nbytes: int
    parts: tuple[Part, ...]
    bucket: int | None = None
    offset: int = 0


def plan_fills(sizes: Sequence[int], slot: int, *, align: int = SLOT_ALIGN) -> Iterator[Fill]:
    """Tensors in order, packed into slots of `slot` bytes. A tensor is cut where the slot ends;
    empty ones are left out. ValueError unless slot >= align > 0."""
    if not slot >= align > 0:
        raise ValueError(f"a slot of {slot} bytes can't be aligned to {align}")
    parts: list[Part] = []
    used = 0
    for tensor, size in enumerate(sizes):
        start = 0
        while start < size:
            position = _up(used, align)
            if position >= slot:
                yield Fill(nbytes=used, parts=tuple(parts))
                parts, used = [], 0
                continue
            nbytes = min(size - start, slot - position)
            parts.append(Part(tensor=tensor, start=start, position=position, nbytes=nbytes))
            used, start = position + nbytes, start + nbytes
    if parts:
        yield Fill(nbytes=used, parts=tuple(parts))


def plan_buckets(sizes: Sequence[int], bucket: int, *, align: int = ALIGN) -> list[Bucket]:
    """Whole tensors in order, side by side in buckets of at most `bucket` bytes; a larger tensor
    has one of its own. Empty ones are left out. ValueError unless bucket >= align > 0."""
    if not bucket >= align > 0:
        raise ValueError(f"a bucket of {bucket} bytes can't be aligned to {align}")
    buckets: list[Bucket] = []
    parts: list[Part] = []
    used = 0
    for tensor, size in enumerate(sizes):
        if not size:
            continue
        position = _up(used, align)
        if parts and position + size > bucket:
            buckets.append(Bucket(nbytes=used, parts=tuple(parts)))
            parts, position = [], 0
        parts.append(Part(tensor=tensor, start=0, position=position, nbytes=size))
        used = position + size
    if parts:
        buckets.append(Bucket(nbytes=used, parts=tuple(parts)))
    return buckets


def plan_whole(sizes: Sequence[int], *, align: int = ALIGN) -> Bucket:
    """All tensors in one bucket, however large."""
    room = sum(_up(size, align) for size in sizes)
    return (plan_buckets(sizes, max(room, align), align=align) or [Bucket(nbytes=0, parts=())])[0]


def cut_buckets(buckets: Sequence[Bucket], slot: int) -> Iterator[Fill]:
    """The fills of slots of `slot` bytes that bring the buckets over, each in one piece: one for a
    bucket that fits, several for one that doesn't. Gaps between tensors go along."""
    if slot <= 0:
        raise ValueError(f"a slot must have at least one byte, got {slot}")
    for number, bucket in enumerate(buckets):
        first = 0  # parts before it end before the fill
        for offset in range(0, bucket.nbytes, slot):
            end = min(offset + slot, bucket.nbytes)
            parts: list[Part] = []
            while bucket.parts[first].position + bucket.parts[first].nbytes <= offset:
                first += 1
            for part in bucket.parts[first:]:
                if part.position >= end:
                    break
                low, high = max(part.position, offset), min(part.position + part.nbytes, end)
                if low < high:
                    parts.append(
                        Part(
                            tensor=part.tensor,
                            start=low - part.position,
                            position=low - offset,
                            nbytes=high - low,
                        )
                    )
            yield Fill(nbytes=end - offset, parts=tuple(parts), bucket=number, offset=offset)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
