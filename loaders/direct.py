"""Our own: the storage at its limit. Direct reads through a small ring of huge pages."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import ClassVar

import torch

from loaders.checkpoint.manifest import Checkpoint, TensorSpec
from loaders.contract import Loader, OptionValue, Rows, Stamp, Tunable
from loaders.io.borrowed import Shape, ring_of, shape_of, stream_tensors
from loaders.io.interleave import Turn, in_order
from loaders.io.rows import parts_of
from loaders.io.sources import DirectSource, OpenSource
from loaders.registry import register


@register
class Direct(Loader):
    """Reader threads fill a ring with O_DIRECT, several blocks at once, and the next file's before
    the last tensor of this one is used. No byte is copied, none goes through the page cache, and
    the only fresh memory is the ring: of huge pages, because a device writes into few long pieces
    of memory faster than into many short ones (four times, on some virtual disks).

    A tensor is contiguous, so the ring grows with the largest one, and beyond what a processor's
    cache holds it fills more slowly: by a quarter, on some virtual disks. With `rows` large tensors
    come in runs of rows as long as a block, and the ring stays small, whatever the checkpoint."""

    name = "direct"
    summary = (
        "N threads read around the page cache into a reused ring; tensors valid until the next"
    )
    formats = frozenset({"safetensors"})
    ownership = "borrowed"
    options: ClassVar[Mapping[str, OptionValue]] = {
        "block_mib": 4,
        "pages": "huge",
        "readers": 0,  # as many as `threads`
        "ring_mib": 0,  # 64, or with `rows` two blocks for each reader; more for large tensors
        "rows": False,
    }
    variants = ({}, {"rows": True})
    threaded = True
    tunable = frozenset({"block_mib", "pages", "readers"})

    def __init__(self, threads: int = 1, **given: OptionValue) -> None:
        super().__init__(threads, **given)
        self.require_positive("block_mib")
        self.require_one_of("pages", "huge", "4k")
        self.require_not_negative("readers")
        self.require_not_negative("ring_mib")

    @classmethod
    def tunable_with(cls, options: Mapping[str, OptionValue]) -> frozenset[Tunable]:
        """What a small ring likes says nothing about the readers of a large one: those also wait
        for fresh pages."""
        return cls.tunable if options.get("rows") else cls.tunable - {"readers"}

    @property
    def in_rows(self) -> bool:
        return self.settings["rows"] is True

    def open_source(self) -> OpenSource:
        """How its files are opened."""
        return DirectSource

    def memory_bytes(self, checkpoint: Checkpoint) -> int:
        if self.in_rows:
            checkpoint = replace(checkpoint, tensors=tuple(self._cut(checkpoint)[1]))
        return ring_of(checkpoint, self._shape()).nbytes

    def turns(self, checkpoint: Checkpoint) -> Sequence[Turn]:
        """In which order its tensors, or parts of them, are read."""
        return in_order(len(checkpoint.tensors))

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[tuple[str, torch.Tensor]]:
        with closing(self._stream(checkpoint, stamp)) as arriving:
            for number, tensor in arriving:
                yield checkpoint.tensors[number].name, tensor

    def load_rows(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[Rows]:
        firsts, parts = self._cut(checkpoint)
        with closing(self._stream(replace(checkpoint, tensors=tuple(parts)), stamp)) as arriving:
            for number, rows in arriving:
                yield parts[number].name, firsts[number], rows

    def _stream(
        self, checkpoint: Checkpoint, stamp: Stamp
    ) -> Generator[tuple[int, torch.Tensor], None, None]:
        with stamp("open"):
            turns = self.turns(checkpoint)
        return stream_tensors(
            checkpoint,
            self._shape(both=any(turn.stream for turn in turns)),
            turns=turns,
            open_source=self.open_source(),
            stamp=stamp,
            note=self.note,
            show_memory=self.show_memory,
        )

    def _cut(self, checkpoint: Checkpoint) -> tuple[list[int], list[TensorSpec]]:
        cut = list(parts_of(checkpoint.tensors, self._shape().part_bytes))
        return [first for first, _ in cut], [part for _, part in cut]

    def _shape(self, *, both: bool = False) -> Shape:
        return shape_of(self.settings, self.threads, both=both)
