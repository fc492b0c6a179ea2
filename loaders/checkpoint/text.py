"""Names that strangers chose, made safe to show.

File and tensor names may hold newlines, terminal escapes, bidirectional overrides or bytes that
are no UTF-8. Every message quotes them through `shown`.
"""

from __future__ import annotations

from collections.abc import Iterable

LONGEST = 200


def printable(text: str) -> str:
    """`text` with every character that a terminal wouldn't print as itself written as an escape.
    Applying it twice changes nothing more."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(name: object) -> str:
    """A name as it stands in a message: printable, on one line, at most 200 characters."""
    text = printable(str(name))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def quoted(name: object) -> str:
    """`shown`, in quotes: for names that may be empty or hold spaces."""
    return f"'{shown(name)}'"


def listed(names: Iterable[object], most: int = 5) -> str:
    """`a, b, c and 7 more`."""
    everything = list(names)
    head = ", ".join(shown(name) for name in everything[:most])
    rest = len(everything) - most
    return f"{head} and {rest} more" if rest > 0 else head


def count(number: int, noun: str) -> str:
    """`1 file`, `3 files`, `2,000 bytes`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
