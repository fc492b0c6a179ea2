"""First touch of fresh memory ahead of those who read into it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from loaders.io.buffers import Buffer, populate, populates
from loaders.io.workers import Workers

_STEP = 4 << 20
"""Bytes touched at once: two huge pages, so that a load that is left early needn't wait."""


class TouchAhead(Workers):
    """A thread that gets the pages of fresh buffers, from the first one's beginning to the last
    one's end, while others already read into them in that order. The kernel clears a page at its
    first touch; a reader that does that itself has nothing in flight meanwhile, and the device
    waits.

    It changes no byte, wherever the readers are. Where the kernel can't do it so (before Linux
    5.14), or has no page left, it does nothing: the readers touch the pages, as they would have.
    With a `lead` it is never further ahead of what was `reach`ed than so many bytes, so that pages
    are filled while the processor's caches still know them, and what readers have reached already
    it leaves out.
    """

    def __init__(self, buffers: Sequence[Buffer], lead: int | None = None) -> None:
        self._buffers = list(reversed(buffers))  # each is let go with its last page
        self._lead = lead
        self._reached = 0
        self._stopped = False
        self._change = threading.Condition()
        super().__init__("touch", 1)

    def reach(self, nbytes: int) -> None:
        """Says that so many bytes, counted from the first buffer's beginning, were read."""
        with self._change:
            self._reached = max(self._reached, nbytes)
            self._change.notify()

    def _work(self) -> None:
        if not populates():
            return
        before = 0
        while self._buffers:
            buffer = self._buffers.pop()
            for begin in range(0, buffer.nbytes, _STEP):
                end = min(begin + _STEP, buffer.nbytes)
                if before + end <= self._reached:
                    continue
                if not self._may_touch(before + end):
                    return
                try:
                    populate(buffer, begin, end)
                except MemoryError:  # the reader that needs the page says so
                    return
            before += buffer.nbytes

    def _may_touch(self, end: int) -> bool:
        """Waits until the bytes up to `end` are within the lead; False once it is stopped."""
        with self._change:
            self._change.wait_for(
                lambda: self._stopped or self._lead is None or end <= self._reached + self._lead
            )
            return not self._stopped

    def _stop(self) -> None:
        with self._change:
            self._stopped = True
            self._change.notify()
