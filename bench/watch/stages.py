"""Where one stage of a start ends and the next begins, by the engine's lines.

A stage ends with the last of its lines (with several workers there are several), and the one
after it begins there, so that the stages cover the whole time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.explain.patterns import PATTERNS

STAGES = ("start", "weights", "profiling", "kv_pool", "warmup", "server")

TITLES: Mapping[str, str] = {
    "start": "engine and executor start",
    "weights": "weights",
    "profiling": "profiling",
    "kv_pool": "KV pool",
    "warmup": "capture and warm-up",
    "server": "server",
}

# A line that says that a stage begins, and one that belongs to its end.
_BEGINS: Mapping[str, str] = {"load_begin": "weights", "capture_begin": "warmup"}
_ENDS: Mapping[str, str] = {
    "weights_took": "weights",
    "weights_size": "weights",
    "model_took": "weights",
    "load_total": "weights",
    "profiling": "profiling",
    "available": "profiling",
    "available_bytes": "profiling",
    "blocks": "kv_pool",
    "tokens": "kv_pool",
    "capture_end": "warmup",
    "init_engine": "warmup",
}
READY = "ready"

_MARKS = tuple(row for row in PATTERNS if row.name in {*_BEGINS, *_ENDS, READY})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """`begin` and `end` in seconds since the engine was started. `explained` is false for a stage
    whose end no line told: it lasts until a line of a later stage came, and may hold some of what
    lies between (random weights are loaded without a word), or until the watching ended."""

    name: str
    begin: float
    end: float
    explained: bool = True


@dataclass(slots=True)
class Stages:
    """Fed with every line and its time, in their order."""

    ready: float | None = None
    _ends: dict[str, float] = field(default_factory=dict)
    _unclosed: set[str] = field(default_factory=set)
    _now: int = 0
    _opened: bool = True  # whether a line of the present stage has come already

    def feed(self, line: bytes, time: float) -> bool:
        """Whether this line bounds a stage."""
        if self.ready is not None:
            return False
        found = mark(line)
        if found is None:
            return False
        if found == READY:
            self.ready = time
        elif found in _BEGINS:
            self._begin(STAGES.index(_BEGINS[found]), time)
        else:
            self._end(STAGES.index(_ENDS[found]), time)
        return True

    def _begin(self, stage: int, time: float) -> None:
        """What went on before it lasted until here. Nothing goes back: a drafter's load, after the
        weights, doesn't reopen them."""
        if stage > self._now:
            self._ends[STAGES[self._now]] = time
            self._now = stage
        self._opened = self._opened or stage == self._now

    def _end(self, stage: int, time: float) -> None:
        if stage >= self._now:
            if stage > self._now and self._opened:
                self._ends[STAGES[self._now]] = time  # its own last line never came
                self._unclosed.add(STAGES[self._now])
            self._ends[STAGES[stage]] = time
            self._now, self._opened = stage + 1, False
        elif stage == self._now - 1 and not self._opened:
            self._ends[STAGES[stage]] = time  # another worker's, later than the first one's

    def until(self, end: float) -> list[Stage]:
        """The stages so far, without a gap, the last one up to readiness or else up to `end`. A
        stage of which no line spoke isn't there: its time stands in the one that follows."""
        found: list[Stage] = []
        begin = 0.0
        for name in STAGES[: self._now]:
            if self._ends.get(name, begin) > begin:
                told = name not in self._unclosed
                found.append(Stage(name=name, begin=begin, end=self._ends[name], explained=told))
                begin = self._ends[name]
        finish = end if self.ready is None else self.ready
        if finish > begin or not found:
            # The engine is up by the time that the server says so, whatever lines were missing.
            name = STAGES[self._now] if self.ready is None else "server"
            found.append(
                Stage(name=name, begin=begin, end=finish, explained=self.ready is not None)
            )
        return found


def telling(data: bytes) -> bool:
    """Whether some line of `data` may bound a stage: most of an engine's output needn't be looked
    at line by line."""
    return any(row.needle in data for row in _MARKS)


def mark(line: bytes) -> str | None:
    """The name of the pattern that a line matches, of those that bound a stage; None for the
    rest."""
    for row in _MARKS:
        if row.needle in line and row.regex.search(line.decode("utf-8", "replace")):
            return row.name
    return None
