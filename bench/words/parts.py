"""What is told of a run, part by part, so that one part that fails hides none of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
Parts = Iterable[tuple[str, Callable[[], Iterable[T]]]]
"""What each part is called, and what tells it."""


def told(
    parts: Parts[T], lost: list[str], after_each: Callable[[], None] = lambda: None
) -> list[T]:
    """What all parts tell, in their order. One that raises is named in `lost`, with why: records
    may hold what nobody thought of, and the other parts are none the worse for it."""
    said: list[T] = []
    for name, tell in parts:
        try:
            said += list(tell())
        except Exception as error:
            lost.append(
                f"{name} couldn't be told from these records ({type(error).__name__}: {error}); "
                f"the rest stands. It is a fault of coldload: report it with the records."
            )
        after_each()
    return said
