"""What comes to a watched start from several threads and from signal handlers, in one order."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from bench.watch.engine import Ended
from bench.watch.output import Arrived, Passage
from bench.watch.probes import Answered, FirstToken

WAITING = 256
"""Chunks of output that may wait to be looked at. An engine that prints faster than they can be
waits then, as it would for a slow terminal."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """A signal that asks us to end."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    found: FirstToken


Event = Arrived | Ended | Answered | Interrupt | Token


class Inbox:
    """Events of several threads and of signal handlers, in the order of their coming. `put` waits
    where too much output is waiting already, `urgent` never does."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Event, bool]] = queue.SimpleQueue()
        self._room = threading.Semaphore(WAITING)

    def put(self, event: Event) -> None:
        self._room.acquire()
        self._queue.put((event, True))

    def urgent(self, event: Event) -> None:
        self._queue.put((event, False))

    def get(self, timeout: float) -> Event | None:
        """The next event, None if none comes in time."""
        try:
            event, held = self._queue.get(timeout=max(0.0, timeout))
        except queue.Empty:
            return None
        if held:
            self._room.release()
        return event


@contextmanager
def signals_into(inbox: Inbox) -> Iterator[None]:
    def handler(number: int, frame: object) -> None:
        inbox.urgent(Interrupt(number=number))

    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def window_changes(passages: Sequence[Passage]) -> Iterator[None]:
    """Passes on changes of our terminal's size."""

    def handler(number: int, frame: object) -> None:
        for passage in passages:
            passage.resize()

    before = signal.signal(signal.SIGWINCH, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
