"""Room on a file system."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Bytes: all there are, and those that this user may still write."""

    total: int
    free: int


def space(path: str | os.PathLike[str]) -> Space | None:
    """Of the file system at `path`; None where it doesn't say (some network and FUSE file systems,
    and a tmpfs without a limit, count no blocks at all). OSError if `path` isn't there."""
    found = os.statvfs(path)
    if not found.f_blocks:
        return None
    return Space(total=found.f_blocks * found.f_frsize, free=found.f_bavail * found.f_frsize)


def free_bytes(path: str | os.PathLike[str]) -> int | None:
    """Those of `space`."""
    found = space(path)
    return None if found is None else found.free
