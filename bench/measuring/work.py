"""A piece of work in a measuring child: made ready, timed from go to done, then proved.

The messages are those of every sample (bench.measuring.child): `ready`, the go, `done`, the report,
the faults.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.measuring.channel import Channel
from bench.measuring.child import Counted, Stopwatch


def no_faults() -> list[str]:
    return []


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a piece of work did. `nbytes` are the payload bytes that arrived, `ownership` the kind
    of memory they lie in. `find_out` tells what is found out about it once the clock has stopped;
    `prove` compares the result with what it must be and names the faults: an empty list is a proof.
    `unproved` says why there is nothing to compare with, else None. `kept` is memory that an owner
    would keep: giving it back isn't part of the work. `instead` is what takes the place of this
    process's own counts in the report, where other processes did the work; and `due`, the bytes
    that a cold load must fetch, where that isn't `nbytes`."""

    nbytes: int
    ownership: str
    notes: list[str] = field(default_factory=list)
    counts: Mapping[str, int] = field(default_factory=dict)
    find_out: Callable[[], dict[str, Any]] = dict
    prove: Callable[[], list[str]] = no_faults
    unproved: str | None = None
    kept: object = None
    instead: Mapping[str, Any] = field(default_factory=dict)


class Go:
    """Called once by the work when its inputs lie ready: says so, waits, and starts the clock."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.counted: Counted | None = None
        self.began = 0.0

    def __call__(self) -> None:
        self.counted = Counted(self._channel)
        self.counted.wait_for_go()
        self.began = time.perf_counter()


Work = Callable[[Go, Stopwatch], Outcome]
"""Gets its inputs ready, calls the go, does the work and stamps its stages."""


def perform(channel: Channel, work: Work, watch: Stopwatch) -> None:
    """One sample of `work`. What it raises ends the sample as failed."""
    go = Go(channel)
    outcome = work(go, watch)
    total = time.perf_counter() - go.began
    assert go.counted is not None, "the work never called its go"
    report = go.counted.done()
    report.update(
        bytes=outcome.nbytes,
        seconds=watch.seconds(total),
        ownership=outcome.ownership,
        notes=outcome.notes,
        counts=dict(outcome.counts),
        details=outcome.find_out(),
        unproved=outcome.unproved,
    )
    report.update(outcome.instead)
    channel.send(report)
    channel.send({"faults": outcome.prove()})
