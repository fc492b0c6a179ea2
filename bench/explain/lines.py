"""A log as blocks of whole lines, in constant memory: files, gzip, UTF-16, standard input."""

from __future__ import annotations

import codecs
import gzip
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

BLOCK = 1 << 20
LONGEST = 64 << 10
"""Bytes of a line that are looked at. The longest that an engine prints (its whole configuration)
has a tenth of it; what comes after is passed over, so that a file without line ends costs no
memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Whole lines (the last one of a log may lack its end). `before` lines came earlier; `arrived`
    is when they were read, in seconds of a monotonic clock, for a live source, else None."""

    data: bytes
    before: int
    arrived: float | None


def blocks(read: Callable[[int], bytes], *, live: bool = False) -> Iterator[Block]:
    """Blocks of what `read(size)` returns until it returns nothing. Every block but the last ends
    with a line feed or a carriage return."""
    kept, skipping, before = b"", False, 0
    while data := read(BLOCK):
        arrived = time.monotonic() if live else None
        if skipping:
            ends = [at for at in (data.find(b"\n"), data.find(b"\r")) if at >= 0]
            if not ends:
                continue
            data, skipping = data[min(ends) :], False
        data = kept + data
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        kept = data[cut:]
        if len(kept) > LONGEST:
            kept, skipping = kept[:LONGEST], True
        if cut:
            yield Block(data=data[:cut], before=before, arrived=arrived)
            before += data.count(b"\n", 0, cut)
    if kept:
        yield Block(data=kept, before=before, arrived=time.monotonic() if live else None)


@contextmanager
def open_log(path: str) -> Iterator[tuple[Callable[[int], bytes], bool]]:
    """`(read, live)` of the file at `path`, or of standard input for `-`. What is gzip or UTF-16
    is told by its first bytes and unpacked on the way. OSError where it can't be opened."""
    if path == "-":
        descriptor = sys.stdin.fileno()
        head = os.read(descriptor, BLOCK)
        yield _decoded(_prepend(head, lambda size: os.read(descriptor, size)), head), True
        return
    with Path(path).open("rb", buffering=0) as file:
        head = file.read(4) or b""
        yield _decoded(_prepend(head, lambda size: file.read(size) or b""), head), False


def _prepend(head: bytes, read: Callable[[int], bytes]) -> Callable[[int], bytes]:
    def joined(size: int) -> bytes:
        nonlocal head
        if not head:
            return read(size)
        data, head = head[:size], head[size:]
        return data

    return joined


def _decoded(read: Callable[[int], bytes], head: bytes) -> Callable[[int], bytes]:
    if head.startswith(b"\x1f\x8b"):
        return _gunzip(read)
    for mark, name in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        if head.startswith(mark):  # what a Windows shell's `>` writes
            return _from_utf16(read, name)
    return read


def _from_utf16(read: Callable[[int], bytes], name: str) -> Callable[[int], bytes]:
    decoder = codecs.getincrementaldecoder(name)("replace")

    def as_utf8(size: int) -> bytes:
        while data := read(size):
            if text := decoder.decode(data):
                return text.encode("utf-8", "replace")
        return b""

    return as_utf8


def _gunzip(read: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """Unpacks as far as it can: a log that was cut while it was packed is a cut log."""

    class Raw:
        def read(self, size: int = -1) -> bytes:
            return read(size if size > 0 else BLOCK)

    file = gzip.GzipFile(fileobj=cast(BinaryIO, Raw()), mode="rb")
    ended = False

    def unpacked(size: int) -> bytes:
        nonlocal ended
        if ended:
            return b""
        try:
            return file.read1(size)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            ended = True
            return b""

    return unpacked
