"""Files as the ceilings consume them: cut at the edges of tensors, summed as a loader's consumer
sums them, so that neither side of a ratio has the cheaper work."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from bench.measuring.consume import WRAP, rows_sum
from loaders.checkpoint.manifest import Checkpoint
from loaders.io.chunks import Span

SHOWN = 5
"""Tensors that are named where many are wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """A file from its beginning to its end: piece i is the bytes from `edges[i]` to `edges[i + 1]`
    of the file, and is tensor `names[i]`, or None for what no tensor has (header, gaps)."""

    path: str
    edges: Sequence[int]
    names: Sequence[str | None]

    @property
    def span(self) -> Span:
        return Span(path=self.path, offset=0, length=self.edges[-1])


def pieces_of(checkpoint: Checkpoint) -> list[Pieces]:
    """Every byte of the checkpoint's files, once. Of tensors that share bytes the first one's
    piece stands for all; those that aren't one run of bytes belong to the gaps."""
    cut = {file.name: ([0], list[str | None]()) for file in checkpoint.files}
    for spec in sorted(checkpoint.tensors, key=lambda spec: spec.offset or 0):
        edges, names = cut[spec.file]
        if spec.offset is None or not spec.nbytes or spec.offset < edges[-1]:
            continue
        if spec.offset > edges[-1]:
            edges.append(spec.offset)
            names.append(None)
        edges.append(spec.offset + spec.nbytes)
        names.append(spec.name)
    for file in checkpoint.files:
        edges, names = cut[file.name]
        if file.size > edges[-1] or not names:  # an empty file is one piece, too
            edges.append(file.size)
            names.append(None)
    return [
        Pieces(path=file.path, edges=cut[file.name][0], names=cut[file.name][1])
        for file in checkpoint.files
    ]


def one_piece(path: str, nbytes: int) -> Pieces:
    """The beginning of a file of no known contents."""
    return Pieces(path=path, edges=[0, nbytes], names=[None])


@dataclass(slots=True, kw_only=True)
class Tally:
    """What has arrived of some files: bytes, and the sum (bench.measuring.consume.byte_sum) of each
    tensor in them."""

    nbytes: int = 0
    sums: Counter[str] = field(default_factory=Counter)

    def add(self, pieces: Pieces, offset: int, data: memoryview) -> None:
        """Reads all of `data`, which are the file's bytes from `offset` on."""
        for name, at, start, length in _parts(pieces, offset, len(data)):
            raw = torch.frombuffer(data, dtype=torch.uint8, offset=start, count=length)
            total = rows_sum(raw, at)
            if name is not None:
                self.sums[name] = (self.sums[name] + total) % WRAP
        self.nbytes += len(data)

    def faults(self, expected: Mapping[str, int], files: Sequence[Pieces]) -> list[str]:
        """A sentence that names the first tensors whose sum isn't the expected one."""
        names = [name for pieces in files for name in pieces.names if name is not None]
        wrong = [name for name in names if self.sums[name] != expected.get(name, self.sums[name])]
        if not wrong:
            return []
        more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        return [f"wrong bytes arrived: {', '.join(wrong[:SHOWN])}{more}"]


def _parts(pieces: Pieces, offset: int, length: int) -> Iterator[tuple[str | None, int, int, int]]:
    """Where those bytes of the file fall: (tensor, the byte of it that the part begins with, where
    in the bytes it begins, its length)."""
    number = bisect_right(pieces.edges, offset) - 1
    start = 0
    while start < length:
        begin, end = pieces.edges[number], pieces.edges[number + 1]
        stop = min(end - offset, length)
        yield pieces.names[number], offset + start - begin, start, stop - start
        start = stop
        number += 1
