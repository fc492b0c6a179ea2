"""Progress in words: each new percentage once, with the time left."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

Say = Callable[[str], None]
Progress = Callable[[int, int], None]
"""Is told (done, in all), in one unit."""

ENOUGH = 3
"""Percent from which on what is left can be told from what has gone by."""

_PASSING = re.compile(r": \d+ %(, \d+:\d\d left)?$")


def percents(say: Say, what: str, clock: Callable[[], float] = time.monotonic) -> Progress:
    """Says each new percentage; how often that is shown is for whoever shows it."""
    shown, began = -1, clock()

    def progress(done: int, total: int) -> None:
        nonlocal shown
        percent = done * 100 // max(total, 1)
        if percent != shown:
            shown = percent
            left = ""
            if ENOUGH <= percent < 100:
                left = f", {time_left((clock() - began) / done * (total - done))}"
            say(f"{what}: {percent} %{left}")

    return progress


def time_left(seconds: float) -> str:
    """`1:05 left`, in minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d} left"


def is_passing(text: str) -> bool:
    """Whether it is a percentage, of which another follows soon."""
    return _PASSING.search(text) is not None
