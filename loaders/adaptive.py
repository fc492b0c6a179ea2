"""Our own: from memory what is in memory, around the page cache what isn't, in one stream."""

from __future__ import annotations

from loaders.direct import Direct
from loaders.io.sources import OpenSource, Residents
from loaders.registry import register


@register
class Adaptive(Direct):
    """As `direct`, but each block is looked up in the page cache first. What is there is copied
    from memory, which is faster than any storage; what isn't is read directly, which is faster than
    through the cache. A file that is half in memory costs the storage half a file."""

    name = "adaptive"
    summary = "as direct, but what the page cache holds is taken from there"

    def open_source(self) -> OpenSource:
        return Residents().open
