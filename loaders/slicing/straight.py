"""From the file to its place in the parameter without a stop in between, where alignment allows.

A read around the page cache needs a file offset and a memory address that leave the same remainder
by the page. Where a tensor lies in its file is given; where a parameter lies in memory isn't. So
each parameter is placed where most of its bytes can be read straight to it. What is left goes
through a small block that is used again: the pages at a tensor's ends, rows of a cut across, parts
of a fused parameter that another file holds at another remainder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from loaders.checkpoint.dtypes import itemsize, torch_dtype
from loaders.io.buffers import PAGE, Buffer, allocate
from loaders.io.chunks import Chunk
from loaders.io.sources import Source
from loaders.slicing.copies import Copy
from loaders.slicing.execute import Raw, move
from loaders.slicing.fetch import Fetch
from loaders.slicing.plan import Parameter

SHORTEST = 256 << 10
"""Bytes: shorter runs aren't worth a request of their own."""


def leanings(plan: Sequence[Fetch], parameters: Sequence[Parameter]) -> list[int]:
    """For each parameter the remainder by the page that its address should have: that of most of
    its contiguous bytes; 0 where there are none, or where it wouldn't suit the dtype."""
    votes = [Counter[int]() for _ in parameters]
    for fetch in plan:
        for _, _, copies in fetch.groups:
            for copy in copies:
                if copy.count == 1:
                    remainder = (fetch.offset + copy.source - copy.target) % PAGE
                    votes[copy.parameter][remainder] += copy.nbytes
    found = []
    for vote, parameter in zip(votes, parameters, strict=True):
        remainder = max(vote, key=lambda one: vote[one], default=0)
        found.append(0 if remainder % itemsize(parameter.dtype) else remainder)
    return found


def placed(plan: Sequence[Fetch], parameters: Sequence[Parameter]) -> list[torch.Tensor]:
    """Host memory for the parameters, each at the remainder that its bytes have in the files (so
    its address is a multiple of its dtype's size, and of no more than that). Huge pages, no page of
    which is there yet, in one piece: it stays until the last of them is dropped."""
    starts = []
    end = 0
    for parameter, remainder in zip(parameters, leanings(plan, parameters), strict=True):
        end += (remainder - end) % PAGE
        starts.append(end)
        end += parameter.nbytes
    memory = allocate(max(end, 1), huge=True)
    found = []
    for parameter, start in zip(parameters, starts, strict=True):
        dtype = torch_dtype(parameter.dtype)
        if parameter.nbytes:
            whole = torch.frombuffer(memory.view(start, parameter.nbytes), dtype=torch.uint8)
            found.append(whole.view(dtype).view(parameter.shape))
        else:
            found.append(torch.empty(parameter.shape, dtype=dtype))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A parameter's bytes, and where they lie."""

    memory: Raw
    address: int

    @classmethod
    def of(cls, memory: Raw) -> Target:
        return cls(memory=memory, address=memory.ctypes.data)


def bring(
    chunk: Chunk, file: Source, copies: Sequence[Copy], slot: Buffer, targets: Sequence[Target]
) -> None:
    """Reads a chunk of a file and carries `copies`, whose sources are relative to it, to their
    places. `slot`, from a page on and a page longer than the chunk, takes what can't be read
    straight: what lies in it lies as in the file."""
    first = chunk.offset % PAGE
    base, end = chunk.offset - first, chunk.offset + chunk.length
    done = base

    def through_slot(until: int) -> None:
        # From a page to a page: sources that read directly take nothing else.
        length = until - done
        pages = -(-length // PAGE) * PAGE
        if length > 0:
            file.read(slot.view(done - base, pages), done, length)

    left: list[Copy] = []
    ordered = sorted(copies, key=lambda copy: copy.source)
    apart = all(one.source_end <= other.source for one, other in pairwise(ordered))
    for copy in ordered:
        target = targets[copy.parameter]
        run = straight_run(copy, chunk.offset, target.address) if apart else None
        if run is None:
            left.append(copy)
            continue
        low, high = run
        through_slot(low)
        start = copy.target + low - (chunk.offset + copy.source)
        file.read(target.memory[start : start + high - low].data, low, high - low)
        done = high
        left += around(copy, low - chunk.offset, high - chunk.offset)
    through_slot(end)
    data = slot.array()
    for copy in left:
        move(copy, data, first + copy.source, targets[copy.parameter].memory)


def straight_run(copy: Copy, offset: int, address: int) -> tuple[int, int] | None:
    """The bytes [low, high) of the file, from a page to a page, that can be read to their place:
    `copy` begins `copy.source` bytes behind `offset`, its parameter at `address`."""
    begin = offset + copy.source
    low, high = -(-begin // PAGE) * PAGE, (begin + copy.length) // PAGE * PAGE
    same = (address + copy.target - begin) % PAGE == 0
    return (low, high) if copy.count == 1 and same and high - low >= SHORTEST else None


def around(copy: Copy, low: int, high: int) -> Iterator[Copy]:
    """What of a contiguous copy lies before `low` and from `high` on, as its sources count."""
    for start, stop in ((copy.source, low), (high, copy.source + copy.length)):
        if start < stop:
            length = stop - start
            yield replace(
                copy,
                source=start,
                target=copy.target + start - copy.source,
                length=length,
                source_stride=length,
                target_stride=length,
            )
