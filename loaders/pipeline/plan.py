"""Which bytes of a file's blocks belong to which tensor. Pure arithmetic over the manifest."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from loaders.checkpoint.manifest import Checkpoint, TensorSpec
from loaders.io.chunks import Chunk, Span
from loaders.io.errors import LoadError
from loaders.io.tensors import by_file
from loaders.transfer.plan import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A file's span, from the page of its first tensor's first byte to its last tensor's end, and
    its tensors that have bytes, by offset. `numbers` are theirs in the checkpoint; `reached[i]` is
    the furthest end of the tensors up to i (tied tensors may lie within one another)."""

    span: Span
    numbers: tuple[int, ...]
    offsets: tuple[int, ...]
    ends: tuple[int, ...]
    reached: tuple[int, ...]


def plan_shards(checkpoint: Checkpoint, page: int) -> list[Shard]:
    """One for each file with bytes of tensors. LoadError for a tensor that isn't one run."""
    shards: list[Shard] = []
    number = 0
    for file, specs in by_file(checkpoint):
        own: list[tuple[int, int, int]] = []
        for spec in specs:
            if spec.nbytes:
                offset = _offset(file.path, spec)
                own.append((offset, offset + spec.nbytes, number))
            number += 1
        if own:
            shards.append(_shard(file.path, sorted(own), page))
    return shards


def _offset(path: str, spec: TensorSpec) -> int:
    if spec.offset is None:
        raise LoadError(f"{path}: tensor {spec.name!r} isn't contiguous in the file")
    return spec.offset


def _shard(path: str, own: Sequence[tuple[int, int, int]], page: int) -> Shard:
    begin = own[0][0] // page * page
    ends = tuple(end for _, end, _ in own)
    reached = tuple(accumulate(ends, max))
    return Shard(
        span=Span(path=path, offset=begin, length=reached[-1] - begin),
        numbers=tuple(number for _, _, number in own),
        offsets=tuple(offset for offset, _, _ in own),
        ends=ends,
        reached=reached,
    )


def parts_of(chunk: Chunk, shard: Shard) -> Iterator[Part]:
    """The parts of tensors in a chunk, `position` from the chunk's first byte; by offset."""
    end = chunk.offset + chunk.length
    first = bisect_right(shard.reached, chunk.offset)  # those before end before the chunk
    for index in range(first, len(shard.numbers)):
        if shard.offsets[index] >= end:
            return
        low = max(shard.offsets[index], chunk.offset)
        high = min(shard.ends[index], end)
        if low < high:
            yield Part(
                tensor=shard.numbers[index],
                start=low - shard.offsets[index],
                position=low - chunk.offset,
                nbytes=high - low,
            )
