"""Opening a file for its header: never blocks, never reads ahead, never reads more than asked."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager


class NotRegularError(OSError):
    """The path is a folder, a pipe, a socket or a device."""


@contextmanager
def opened(path: str) -> Iterator[tuple[int, int]]:
    """Yields (descriptor, size in bytes) of a regular file and closes it.

    OSError as open(2) gives it; NotRegularError for anything that isn't a regular file. A pipe
    would block the open until somebody writes to it, hence O_NONBLOCK. Read-ahead is switched off
    for this descriptor: reading a header must not warm the page cache for the data after it.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise NotRegularError(f"{kind(info.st_mode)}, not a regular file")
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        yield fd, info.st_size
    finally:
        os.close(fd)


def read_at(fd: int, offset: int, length: int) -> bytes:
    """`length` bytes from `offset`, fewer only at the end of the file. One pread may return less
    than asked (over 2 GiB, on network file systems, by a signal)."""
    parts: list[bytes] = []
    while length > 0:
        part = os.pread(fd, length, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def kind(mode: int) -> str:
    """What a st_mode is, in words."""
    for test, name in (
        (stat.S_ISREG, "a file"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a character device"),
        (stat.S_ISBLK, "a block device"),
    ):
        if test(mode):
            return name
    return "something else"
