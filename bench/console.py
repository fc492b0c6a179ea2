"""How commands print for people: plain where standard output isn't a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from bench.progress import Progress


def console() -> Console:
    """Lines are left whole: whoever pipes them wants to grep them."""
    return Console(highlight=False, emoji=False, soft_wrap=True)


@contextmanager
def steps_bar(what: str) -> Iterator[Progress]:
    """A bar of steps with the time left on standard error, for people only."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
