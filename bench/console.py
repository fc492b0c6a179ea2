"""How commands print for people: plain where standard output isn't a terminal."""

from __future__ import annotations

from rich.console import Console


def console() -> Console:
    """Lines are left whole: whoever pipes them wants to grep them."""
    return Console(highlight=False, emoji=False, soft_wrap=True)
