"""An engine's output on its way through: passed on byte for byte, and stamped as it arrives."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import selectors
import termios
import time
import tty
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Stream = Literal["stdout", "stderr"]

_CHUNK = 64 << 10
_LINES = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")

LONGEST = 64 << 10
"""Bytes of a line that are kept for looking at; all of it is passed on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """Bytes that were read from the engine at `time` (seconds of time.monotonic); none: it has
    closed the stream."""

    stream: Stream
    time: float
    data: bytes


@dataclass(slots=True)
class Splitter:
    """Keeps each stream's unfinished line back, each for itself: a line that comes in two pieces
    isn't torn by what the other stream printed in between."""

    _kept: dict[Stream, bytes] = field(default_factory=dict)

    def feed(self, arrived: Arrived) -> bytes:
        """The whole lines that have arrived now; at a stream's end also one without an end."""
        data = self._kept.pop(arrived.stream, b"") + arrived.data
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if arrived.data and cut < len(data):
            self._kept[arrived.stream] = data[cut : cut + LONGEST]
            return data[:cut]
        return data


def lines_of(data: bytes) -> list[bytes]:
    """Lines with their ends: a line feed, a carriage return, or both."""
    return [line[:LONGEST] for line in _LINES.findall(data)]


class Passage:
    """One stream of the engine on its way to `target`, a file descriptor of ours.

    The engine gets a pseudo-terminal where `target` is a terminal (so that it prints bars and
    colours as it would without us), else a pipe. `engine_end` is the engine's end, to be closed
    here once it has been handed over.
    """

    def __init__(self, stream: Stream, target: int) -> None:
        self.stream: Stream = stream
        self.target = target
        self.terminal = os.isatty(target)
        self.broken = False
        if self.terminal:
            self._our_end, self.engine_end = pty.openpty()
            # Raw: the bytes arrive as they were written, and our own terminal adds what it adds.
            tty.setraw(self.engine_end)
            self.resize()
        else:
            self._our_end, self.engine_end = os.pipe()

    def resize(self) -> None:
        """Tells the engine how large our terminal is."""
        if self.terminal:
            with contextlib.suppress(OSError):  # a terminal without a size has none to pass on
                size = fcntl.ioctl(self.target, termios.TIOCGWINSZ, b"\0" * 8)
                fcntl.ioctl(self._our_end, termios.TIOCSWINSZ, size)

    def close_engine_end(self) -> None:
        os.close(self.engine_end)

    def fileno(self) -> int:
        """The end that the engine's output comes out of."""
        return self._our_end

    def read(self) -> bytes:
        """What is there; nothing once the engine has closed its end."""
        try:
            return os.read(self._our_end, _CHUNK)
        except OSError:  # EIO: a pseudo-terminal whose other end is closed
            return b""

    def close(self) -> None:
        os.close(self._our_end)

    def write(self, data: bytes) -> None:
        """All of it. Where nobody reads any more (`| head`), the engine isn't bothered with it: it
        goes on, and what it prints is only looked at."""
        rest = memoryview(data)
        while rest and not self.broken:
            try:
                rest = rest[os.write(self.target, rest) :]
            except BlockingIOError:
                time.sleep(0.01)  # a terminal that somebody made non-blocking
            except OSError:
                self.broken = True


def pump(passages: Sequence[Passage], arrived: Callable[[Arrived], None]) -> None:
    """Passes on all that comes until the engine has closed every stream.

    One thread for all streams, and the first stream first: a line on standard output that was
    printed before one on standard error (vLLM logs to the former, its server to the latter) is also
    seen before it, as each is in its pipe by the time that the later one can be read.
    """
    with selectors.DefaultSelector() as selector:
        for passage in passages:
            selector.register(passage, selectors.EVENT_READ)
        while selector.get_map():
            readable = {key.fileobj for key, _ in selector.select()}
            for passage in passages:
                if passage not in readable:
                    continue
                data = passage.read()
                now = time.monotonic()
                if data:
                    passage.write(data)
                else:
                    selector.unregister(passage)
                    passage.close()
                arrived(Arrived(stream=passage.stream, time=now, data=data))
