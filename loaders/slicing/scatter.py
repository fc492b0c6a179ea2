"""Read once, send on: each rank reads its share of the files, once for all ranks, and what it read
goes over a collective to the ranks that keep it.

The bytes that any rank keeps, in the order of files and offsets, are divided evenly. Ranks walk
their shares in rounds of one block each: while a block is exchanged, the next one is read. Who
sends what to whom follows from the slice plans, which every rank has: no message says it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np
import torch

from loaders.checkpoint.manifest import Checkpoint
from loaders.io.buffers import PAGE, Buffer, allocate
from loaders.io.chunks import ChunkSource, Span
from loaders.io.sources import OpenSource
from loaders.slicing.copies import Copy, padding_of
from loaders.slicing.execute import Raw, move
from loaders.slicing.fetch import Fetch, fetches
from loaders.slicing.plan import Parameter

BLOCK = 16 << 20
"""Bytes of a round's block: large enough for a collective to reach its rate."""

CHUNK = 4 << 20
WHOLE = 1 << 62
"""Gap between two ranges that are one range: a rank's bytes of a file are looked up as one."""

Stamp = Callable[[str], AbstractContextManager[None]]
Exchange = Callable[[Raw, list[int], list[int]], torch.Tensor]
"""(bytes to send, those to each rank, those from each rank) -> what came, uint8, rank by rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Bytes [start, end) of the file number `file`."""

    file: int
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.start


class Shares:
    """Who reads what: made from the plans of all ranks, the same on each of them. `rounds` is how
    often they exchange, also those whose share is shorter."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        plans: Sequence[Sequence[Parameter]],
        *,
        block_bytes: int = BLOCK,
    ) -> None:
        number = {file.name: index for index, file in enumerate(checkpoint.files)}
        self.paths = [file.path for file in checkpoint.files]
        self.world = len(plans)
        self._ranges: list[dict[int, Fetch]] = [
            {number[one.file]: one for one in fetches(checkpoint, parameters, WHOLE)}
            for parameters in plans
        ]
        self._blocks = [
            list(_cut(share, block_bytes)) for share in _divided(self._wanted(), self.world)
        ]
        self.rounds = max(map(len, self._blocks), default=0)

    def block(self, rank: int, turn: int) -> list[Stretch]:
        """What `rank` reads in that round."""
        mine = self._blocks[rank]
        return mine[turn] if turn < len(mine) else []

    def asked_bytes(self, rank: int) -> int:
        """Bytes that the rank reads altogether."""
        return sum(one.nbytes for block in self._blocks[rank] for one in block)

    def parts(self, reader: int, turn: int, keeper: int) -> Iterator[tuple[int, Copy]]:
        """What `keeper` keeps of what `reader` reads in that round: (number of the stretch, copy
        whose source is relative to the stretch's first byte), in an order that both know."""
        for number, one in enumerate(self.block(reader, turn)):
            found = self._ranges[keeper].get(one.file)
            if found is not None:
                yield from _relative(found, number, one)

    def _wanted(self) -> list[Stretch]:
        """For each file, from the first to the last byte that any rank keeps."""
        every: dict[int, list[Fetch]] = {}
        for ranges in self._ranges:
            for file, one in ranges.items():
                every.setdefault(file, []).append(one)
        return [
            Stretch(
                file=file,
                start=min(one.offset for one in found),
                end=max(one.offset + one.length for one in found),
            )
            for file, found in sorted(every.items())
        ]


def _relative(found: Fetch, number: int, one: Stretch) -> Iterator[tuple[int, Copy]]:
    start = max(one.start, found.offset)
    end = min(one.end, found.offset + found.length)
    if start < end:
        for copy in found.within(start - found.offset, end - start):
            yield number, replace(copy, source=copy.source + start - one.start)


def _divided(wanted: Sequence[Stretch], ways: int) -> Iterator[list[Stretch]]:
    """The stretches, one behind the other, cut into `ways` parts of equal size (to a byte)."""
    total = sum(one.nbytes for one in wanted)
    for rank in range(ways):
        yield _between(wanted, rank * total // ways, (rank + 1) * total // ways)


def _cut(share: Sequence[Stretch], block_bytes: int) -> Iterator[list[Stretch]]:
    total = sum(one.nbytes for one in share)
    for start in range(0, total, block_bytes):
        yield _between(share, start, min(start + block_bytes, total))


def _between(wanted: Sequence[Stretch], low: int, high: int) -> list[Stretch]:
    """Bytes [low, high) of the stretches as if they were one behind the other."""
    found = []
    at = 0
    for one in wanted:
        start, end = max(low - at, 0), min(high - at, one.nbytes)
        if start < end:
            found.append(replace(one, start=one.start + start, end=one.start + end))
        at += one.nbytes
    return found


class _Slot:
    """Memory for one block. Each stretch lies so that its address and its offset in the file leave
    the same remainder by the page, as direct reads want it."""

    def __init__(self, nbytes: int) -> None:
        self.buffer: Buffer = allocate(nbytes, huge=True)
        self.array: Raw = self.buffer.array()
        self.starts: list[int] = []

    def lay_out(self, block: Sequence[Stretch]) -> None:
        self.starts = []
        at = 0
        for one in block:
            self.starts.append(at + one.start % PAGE)
            at += -(-(one.start % PAGE + one.nbytes) // PAGE) * PAGE


class _Reader:
    """Reads blocks into two slots by turns, with several threads, behind the caller's back."""

    def __init__(
        self, shares: Shares, rank: int, threads: int, direct: bool, open_source: OpenSource | None
    ) -> None:
        self._shares, self._rank, self._direct = shares, rank, direct
        self._open = open_source
        blocks = [shares.block(rank, turn) for turn in range(shares.rounds)]
        # each stretch begins on a page of its own
        room = max((sum(one.nbytes + 2 * PAGE for one in block) for block in blocks), default=0)
        self._slots = [_Slot(max(room, PAGE)) for _ in range(2)]
        self._threads = max(threads, 1)
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="share")
        self._pending: list[Future[None]] = []
        self._source: ChunkSource | None = None
        self.notes: dict[str, list[str]] = {}

    def start(self, turn: int) -> None:
        block = self._shares.block(self._rank, turn)
        slot = self._slots[turn % 2]
        slot.lay_out(block)
        paths = self._shares.paths
        spans = [Span(path=paths[s.file], offset=s.start, length=s.nbytes) for s in block]
        self._source = ChunkSource(spans, CHUNK, direct=self._direct, open_source=self._open)
        self._pending = [self._pool.submit(_fill, self._source, slot) for _ in range(self._threads)]

    def wait(self, turn: int) -> _Slot:
        """The slot of the round that was started; the first error of a thread."""
        assert self._source is not None
        for future in self._pending:
            future.result()
        self._source.close()
        self.notes.update(self._source.notes)
        return self._slots[turn % 2]

    def close(self) -> None:
        if self._source is not None:
            self._source.stop()
        self._pool.shutdown(wait=True)
        if self._source is not None:
            self._source.close()


def _fill(source: ChunkSource, slot: _Slot) -> None:
    try:
        while (taken := source.take()) is not None:
            chunk, file = taken
            into = slot.buffer.view(slot.starts[chunk.span] + chunk.start, chunk.length)
            file.read(into, chunk.offset, chunk.length)
            source.give_back(chunk)
    except BaseException:
        source.stop()
        raise


def read_and_scatter(
    shares: Shares,
    rank: int,
    parameters: Sequence[Parameter],
    targets: Sequence[torch.Tensor],
    *,
    exchange: Exchange,
    stamp: Stamp,
    threads: int,
    direct: bool = True,
    open_source: OpenSource | None = None,
    at_round: Callable[[int], None] = lambda turn: None,
) -> dict[str, list[str]]:
    """Fills `targets` (contiguous, on the device that `exchange` answers on, one for each of this
    rank's parameters). Every rank must call it with the same shares, or `exchange` waits for ever.

    `stamp("exchange")` is open while bytes are packed, sent and put in place; the rest of the time
    is waiting for the storage. Returns path -> what is to be told about its reading.
    """
    into = [target.reshape(-1).view(torch.uint8) for target in targets]
    reader = _Reader(shares, rank, threads, direct, open_source)
    try:
        if shares.rounds:
            reader.start(0)
        for turn in range(shares.rounds):
            slot = reader.wait(turn)
            if turn + 1 < shares.rounds:
                reader.start(turn + 1)
            at_round(turn)
            with stamp("exchange"):
                _pass_on(shares, rank, turn, slot, into, exchange)
    finally:
        reader.close()
    for parameter, target in zip(parameters, into, strict=True):
        padding = padding_of(parameter)
        if padding is not None:
            target[padding[0] : padding[1]] = 0
    return reader.notes


def _pass_on(
    shares: Shares,
    rank: int,
    turn: int,
    slot: _Slot,
    into: Sequence[torch.Tensor],
    exchange: Exchange,
) -> None:
    ranks = range(shares.world)
    outgoing = [list(shares.parts(rank, turn, keeper)) for keeper in ranks]
    incoming = [list(shares.parts(reader, turn, rank)) for reader in ranks]
    sizes = [sum(copy.nbytes for _, copy in part) for part in outgoing]
    packed = np.empty(sum(sizes), dtype=np.uint8)
    at = 0
    for part in outgoing:
        for number, copy in part:
            row = replace(copy, target=at, target_stride=copy.length)
            move(row, slot.array, slot.starts[number] + copy.source, packed)
            at += copy.nbytes
    came = exchange(packed, sizes, [sum(copy.nbytes for _, copy in part) for part in incoming])
    at = 0
    for part in incoming:
        for _, copy in part:
            rows = came[at : at + copy.nbytes].view(copy.count, copy.length)
            target = into[copy.parameter]
            shape, stride = (copy.count, copy.length), (copy.target_stride, 1)
            target.as_strided(shape, stride, target.storage_offset() + copy.target).copy_(rows)
            at += copy.nbytes
