"""Progress in words: each new percentage once."""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str], None]


def percents(say: Say, what: str) -> Callable[[int, int], None]:
    """Says each new percentage; how often that is shown is for whoever shows it."""
    shown = -1

    def progress(done: int, total: int) -> None:
        nonlocal shown
        percent = done * 100 // max(total, 1)
        if percent != shown:
            shown = percent
            say(f"{what}: {percent} %")

    return progress
