"""First touch of fresh memory ahead of those who read into it."""

from __future__ import annotations

from loaders.io.buffers import Buffer, populate, populates
from loaders.io.workers import Workers

_STEP = 4 << 20
"""Bytes touched at once: two huge pages, so that a load that is left early needn't wait."""


class TouchAhead(Workers):
    """A thread that gets the pages of a fresh buffer, from its beginning to its end, while others
    already read into it in that order. The kernel clears a page at its first touch; a reader that
    does that itself has nothing in flight meanwhile, and the device waits.

    It changes no byte, wherever the readers are. Where the kernel can't do it so (before Linux
    5.14), or has no page left, it does nothing: the readers touch the pages, as they would have.
    """

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._stopped = False
        super().__init__("touch", 1)

    def _work(self) -> None:
        if not populates():
            return
        for begin in range(0, self._buffer.nbytes, _STEP):
            if self._stopped:
                return
            try:
                populate(self._buffer, begin, min(begin + _STEP, self._buffer.nbytes))
            except MemoryError:  # the reader that needs the page says so
                return

    def _stop(self) -> None:
        self._stopped = True
