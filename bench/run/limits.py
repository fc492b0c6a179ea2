"""Limits that end a run with a riddle ("too many open files", a bus error) unless they're looked at
before it starts."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable

from bench.sizes import format_size
from loaders.system.space import free_bytes


class LimitError(RuntimeError):
    """The host gives less than the run needs; the message says both, and what to do."""


def raise_nofile(need: int) -> None:
    """Sees to it that this process may have `need` files open at once: raises the soft limit as far
    as needed, up to the hard one. LimitError where that isn't enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= need:
        return
    if hard != resource.RLIM_INFINITY and hard < need:
        raise LimitError(
            f"open files: {need} needed, but the hard limit (ulimit -Hn) is {hard}; raise it "
            f"(ulimit -Hn {need} as root, docker run --ulimit nofile={need}) or use fewer shards"
        )
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
    except (ValueError, OSError) as error:
        raise LimitError(
            f"open files: {need} needed, have {soft}, and the limit couldn't be raised: {error}"
        ) from error


def shm_room(
    path: str | os.PathLike[str],
    need: int,
    *,
    free: Callable[[str | os.PathLike[str]], int | None] = free_bytes,
) -> None:
    """Checks that the file system at `path` (/dev/shm) has `need` bytes free. LimitError if not:
    writing there anyway would end in a bus error, not in an exception. OSError if `path` isn't
    there."""
    have = free(path)
    if have is not None and have < need:  # None: a tmpfs with size=0, unbounded
        raise LimitError(
            f"shared memory at {os.fspath(path)}: {format_size(need)} needed, "
            f"{format_size(have)} free; give it more (docker run --shm-size, "
            "mount -o remount,size=) or use threads or files instead"
        )
