"""What a log has told so far: events with their process, line and time. Bounded, whatever the log
holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from bench.explain.clock import Clock, elapsed
from bench.explain.failures import Failure, Failures, Stage
from bench.explain.prefix import Line

Counts = Literal["files", "files to 0.9", "groups", "other"]
MOST_EVENTS = 4096
"""Events of one name that are kept: several for each worker of a large cluster."""

_POOL = re.compile(r"VllmWorkerProcess|Ray\w*|\w*Actor|pt_main_thread|")
_COUNTS: tuple[tuple[Counts, str], ...] = (
    ("files", r"Loading \w+ checkpoint shards|Multi-thread loading"),
    ("files to 0.9", r".*Runai Model Streamer"),
    ("groups", r".*Fastsafetensor"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A line and its times, in seconds on each clock that the log has: the engine's, a container's,
    a time of day without a date, and the arrival of a line that was read live."""

    line: int
    engine: float | None = None
    container: float | None = None
    clock: float | None = None
    arrival: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    name: str
    groups: tuple[str | None, ...]
    worker: str
    moment: Moment

    def number(self, group: int = 0) -> float:
        return float((self.groups[group] or "0").replace(",", ""))

    def integer(self, group: int = 0) -> int:
        return int(re.sub(r"\D", "", self.groups[group] or "0") or 0)


@dataclass(slots=True)
class Bar:
    """The progress bar of the main model's weights. What it counts differs by loader: shard files;
    files until 0.9 and tensors since (Run:ai); groups of as many files as there are ranks
    (fastsafetensors); tensors or bytes."""

    counts: Counts
    what: str
    total: int = 0
    done: int = 0
    seconds: int | None = None
    first: Moment | None = None
    line: int = 0


@dataclass(slots=True)
class State:
    """One start of an engine, folded from its lines."""

    events: dict[str, list[Event]] = field(default_factory=dict)
    failures: Failures = field(default_factory=Failures)
    clock: Clock = field(default_factory=Clock)
    bar: Bar | None = None
    names: dict[str, int] = field(default_factory=dict)
    pids: dict[str, set[str]] = field(default_factory=dict)
    first: Moment | None = None
    latest: Moment | None = None
    ready: Moment | None = None
    offline_ready: Moment | None = None
    ready_event: Moment | None = None
    server: bool = False
    engine_lines: int = 0
    starts: int = 1
    later: Failure | None = None
    shutdown_line: int | None = None
    longest_printed: float = 0.0

    def all(self, *names: str) -> Iterator[Event]:
        for name in names:
            yield from self.events.get(name, ())

    def one(self, name: str) -> Event | None:
        return next(iter(self.events.get(name, ())), None)

    def add(self, event: Event) -> None:
        kept = self.events.setdefault(event.name, [])
        if len(kept) < MOST_EVENTS:
            kept.append(event)

    @property
    def stage(self) -> Stage:
        if "init_engine" in self.events:
            return "server"
        if self.events.keys() & {"tokens", "blocks", "override"}:
            return "capture"
        if self.events.keys() & {"model_took", "weights_size", "load_total"}:
            return "profiling"
        if self.bar or self.events.keys() & {"load_begin", "download", "weights_took"}:
            return "weights"
        return "start"

    def worker_of(self, line: Line) -> str:
        """The worker's name as its prefix has it: `main` without one, `pid7` where there is only a
        pid."""
        name = line.process
        if name is None:
            return "main"
        if _POOL.fullmatch(name):
            return f"pid{line.pid}@{line.ip}" if line.ip else f"pid{line.pid}"
        if found := re.fullmatch(r"\w+ (rank)=(\d+)", name):
            name = f"{found[1]}{found[2]}"
        elif found := re.fullmatch(r"VllmWorker (\w+)", name):
            name = found[1]
        pids = self.pids.setdefault(name, set()) if len(self.pids) < MOST_EVENTS else set()
        if line.pid and len(pids) < MOST_EVENTS:
            pids.add(line.pid)
        return name if len(pids) < 2 or name.startswith("Engine") else f"{name}@{line.pid}"

    def saw(self, line: Line, number: int, arrived: float | None) -> Moment:
        """The line's moment; it counts as seen. A line without a time that was read live gets the
        engine's time by its arrival after the last line that had one."""
        times = {stamp.family: self.clock.place(stamp) for stamp in line.stamps}
        before = self.latest
        if (
            arrived is not None
            and "engine" not in times
            and before is not None
            and before.engine is not None
            and before.arrival is not None
        ):
            times["engine"] = before.engine + max(0.0, arrived - before.arrival)
        moment = Moment(
            line=number,
            engine=times.get("engine"),
            container=times.get("container"),
            clock=times.get("clock"),
            arrival=arrived,
        )
        self.first = _joined(moment, self.first, min)
        self.latest = _joined(moment, self.latest, max)
        for name in line.names[:8]:
            if len(self.names) < MOST_EVENTS:
                self.names.setdefault(name, number)
        self.engine_lines += line.engine_like
        self.server = self.server or any(name.lower().startswith("api") for name in line.names)
        return moment

    def saw_bar(self, found: dict[str, str], moment: Moment) -> None:
        """A step of a weights bar. The drafter's own comes after its announcement, or after the
        main model's bar has ended and its weights are in place; of several engines the slowest
        counts."""
        several = sum(1 for event in self.all("engine")) > 1
        settled = self.bar is None or self.bar.seconds is not None
        loaded = self.events.keys() & {"weights_took", "weights_size", "model_took"}
        if "drafter" in self.events or (loaded and settled and not several):
            return
        if self.bar is None:
            matching = (name for name, what in _COUNTS if re.match(what, found["what"]))
            counts: Counts = "other" if found["unit"] else next(matching, "other")
            self.bar = Bar(counts=counts, what=found["what"], first=moment)
        bar = self.bar
        total = int(re.sub(r"\D", "", found["total"]) or 0)
        done = int(re.sub(r"\D", "", found["done"]) or 0)
        bar.total, bar.done = max(bar.total, total), max(bar.done, min(done, total))
        bar.line = moment.line
        if found["percent"] == "100":
            bar.seconds = max(bar.seconds or 0, elapsed(found["elapsed"]))


def _joined(new: Moment, old: Moment | None, pick: object) -> Moment:
    """The earlier (or later) of two moments, clock by clock."""
    if old is None:
        return new
    choose = min if pick is min else max

    def of(a: float | None, b: float | None) -> float | None:
        present = [value for value in (a, b) if value is not None]
        return choose(present) if present else None

    return Moment(
        line=choose(new.line, old.line),
        engine=of(new.engine, old.engine),
        container=of(new.container, old.container),
        clock=of(new.clock, old.clock),
        arrival=of(new.arrival, old.arrival),
    )
