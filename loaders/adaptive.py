"""Our own: from memory what is in memory, around the page cache what isn't, in one stream."""

from __future__ import annotations

from collections.abc import Sequence

from loaders.checkpoint.manifest import Checkpoint
from loaders.direct import Direct
from loaders.io.interleave import Turn, interleave
from loaders.io.shares import resident_bytes
from loaders.io.sources import OpenSource, Residents
from loaders.registry import register


@register
class Adaptive(Direct):
    """As `direct`, but each block is looked up in the page cache first. What is there is copied
    from memory, which is faster than any storage; what isn't is read directly, which is faster than
    through the cache. A file that is half in memory costs the storage half a file.

    Of files that are partly in memory, absent and resident tensors (with `rows`: parts of them)
    take turns, so that the device reads on while memory is copied, and there are as many readers
    again."""

    name = "adaptive"
    summary = "as direct, but what the page cache holds is taken from there"

    def open_source(self) -> OpenSource:
        return Residents().open

    def turns(self, checkpoint: Checkpoint) -> Sequence[Turn]:
        resident = resident_bytes(checkpoint, Residents())
        absent = [spec.nbytes - r for spec, r in zip(checkpoint.tensors, resident, strict=True)]
        return interleave(absent, resident, stint=self._shape().block_bytes)
