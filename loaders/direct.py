"""Our own: the storage at its limit. Direct reads through a small ring of huge pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch

from loaders.checkpoint.manifest import Checkpoint
from loaders.contract import Loader, OptionValue, Stamp
from loaders.io.borrowed import Shape, ring_of, shape_of, stream_tensors
from loaders.io.sources import DirectSource, OpenSource
from loaders.registry import register


@register
class Direct(Loader):
    """Reader threads fill a ring with O_DIRECT, several blocks at once, and the next file's before
    the last tensor of this one is used. No byte is copied, none goes through the page cache, and
    the only fresh memory is the ring: of huge pages, because a device writes into few long pieces
    of memory faster than into many short ones (four times, on some virtual disks)."""

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
        "ring_mib": 64,  # more where two neighbouring tensors need more
    }
    threaded = True
    tunable = frozenset({"block_mib", "pages", "readers"})

    def __init__(self, threads: int = 1, **given: OptionValue) -> None:
        super().__init__(threads, **given)
        self.require_positive("block_mib", "ring_mib")
        self.require_one_of("pages", "huge", "4k")
        self.require_not_negative("readers")

    def open_source(self) -> OpenSource:
        """How its files are opened."""
        return DirectSource

    def memory_bytes(self, checkpoint: Checkpoint) -> int:
        return ring_of(checkpoint, self._shape()).nbytes

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[tuple[str, torch.Tensor]]:
        return stream_tensors(
            checkpoint, self._shape(), open_source=self.open_source(), stamp=stamp, note=self.note
        )

    def _shape(self) -> Shape:
        return shape_of(self.settings, self.threads)
