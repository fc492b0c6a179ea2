"""Folds a log, block by block, into a state. A block is searched for literals; only lines that hold
one are taken apart, so that a log of gigabytes costs a search."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice

from bench.explain import failures
from bench.explain.lines import LONGEST, Block, blocks
from bench.explain.patterns import PATTERNS, Pattern
from bench.explain.prefix import Line, split
from bench.explain.state import Event, Moment, State

_FAILURE = -1
_STAMP_SEARCH = 500
"""Places with a colon that are looked at, from a block's either end, for a time of day."""
_STAMP_LINES = 50
"""Lines with such a time that are taken apart: what looks like one may be a bar's."""
_TIME_OF_DAY = re.compile(rb"\d\d:\d\d:\d\d")

_PROGRESS = frozenset({
    "load_begin", "weights_took", "weights_size", "model_took", "load_total", "available",
    "blocks", "tokens", "capture_end", "init_engine", "server",
})  # fmt: skip
_GENERIC = frozenset({"ready", "at_work", "arguments", "banner", "capture_begin"})


def _needles() -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for at, pattern in enumerate(PATTERNS):
        found.setdefault(pattern.needle, []).append(at)
    for needle in failures.NEEDLES:
        found.setdefault(needle, []).append(_FAILURE)
    return found


NEEDLES = _needles()


def parse(read: Callable[[int], bytes], *, live: bool = False) -> State:
    """The state after all that `read(size)` returns. Never raises for what the log holds."""
    state = State()
    for block in blocks(read, live=live):
        fold(state, block)
        if state.later is not None and not live:
            break  # nothing else is looked for; a pipe is read to its end, or its writer would die
    return state


def fold(state: State, block: Block) -> None:
    """Takes one block of whole lines in, for whoever has stamped them: `block.arrived`."""
    # A carriage return begins a line too (progress bars); numbers count line feeds, as grep's.
    text = block.data.replace(b"\r", b"\n") if b"\r" in block.data else block.data
    start = 0
    if state.ready is None:
        start = _feed(state, block, text)
    if state.ready is not None and state.later is None:
        _look_later(state, block, text, start)


def _feed(state: State, block: Block, text: bytes) -> int:
    """Takes a block's telling lines in. Returns where the rest begins once the engine is ready."""
    if state.first is None or state.first.engine is state.first.container is None:
        for start, end in islice(_forward(text), _STAMP_LINES):
            if _stamped(line := split(text[start:end])):
                state.saw(line, _number(block, start), block.arrived)
                break
    counted, number = 0, block.before + 1
    for start, wanted in _hits(text, NEEDLES):
        end = text.find(b"\n", start)
        end = len(text) if end < 0 else end
        line = split(text[start : min(end, start + LONGEST)])
        number += block.data.count(b"\n", counted, start)
        counted = start
        _take(state, block, text, start, line, number, wanted)
        if state.ready is not None:
            return end
    _see_last(state, block, text, len(text))
    return len(text)


def _hits(text: bytes, needles: dict[bytes, list[int]]) -> list[tuple[int, list[int]]]:
    """Starts of the lines that hold needles, in order, each with what its needles stand for."""
    found: dict[int, list[int]] = {}
    for needle, meant in needles.items():
        at = text.find(needle)
        while at >= 0:
            found.setdefault(text.rfind(b"\n", 0, at) + 1, []).extend(meant)
            end = text.find(b"\n", at)
            at = text.find(needle, end) if end >= 0 else -1
    return sorted(found.items())


def _take(
    state: State,
    block: Block,
    text: bytes,
    start: int,
    line: Line,
    number: int,
    wanted: list[int],
) -> None:
    moment: Moment | None = None
    for at in dict.fromkeys(wanted):
        if at == _FAILURE:
            continue
        pattern = PATTERNS[at]
        if found := pattern.regex.search(line.text):
            if pattern.name in ("ready", "at_work") and not _stamped(line):
                _see_last(state, block, text, start)
            moment = moment or state.saw(line, number, block.arrived)
            if pattern.name == "bar":
                state.saw_bar(found.groupdict(), moment)
                state.engine_lines += 1
                continue
            worker = state.worker_of(line)
            event = Event(name=pattern.name, groups=found.groups(), worker=worker, moment=moment)
            _happened(state, pattern, event)
    if moment is None and _stamped(line):
        state.saw(line, number, block.arrived)
    if _FAILURE in wanted:
        source = state.worker_of(line)
        state.failures.add(source, line.text, line.level, number, state.stage)


def _happened(state: State, pattern: Pattern, event: Event) -> None:
    name = pattern.name
    if name in ("engine", "server_version") and _restarted(state, event):
        _begin_again(state, event.moment)
    state.add(event)
    state.engine_lines += name not in _GENERIC
    state.server = state.server or name in ("server_version", "server")
    if name == "engine" and len(state.events["engine"]) == 1:
        state.failures.engine_began()
    if name in _PROGRESS:
        state.failures.went_on(event.worker)
    if name == "ready":
        state.ready = state.latest
        state.ready_event = event.moment
    elif name == "init_engine":
        earlier = [one.worker for one in state.all("init_engine")][:-1]
        if event.worker not in earlier:
            state.offline_ready = event.moment
    elif name == "at_work" and state.engine_lines:
        state.ready = state.offline_ready or state.latest
        state.ready_event = state.offline_ready or event.moment


def _restarted(state: State, event: Event) -> bool:
    """Whether an engine begins anew after one that failed or vanished: a container's log goes on
    through restarts, and the record is of the last start."""
    if state.offline_ready is not None and not state.server:
        return False
    same = any(one.worker == event.worker for one in state.all("engine"))
    if event.name == "server_version":
        return bool(state.failures) and "server_version" in state.events
    return same


def _begin_again(state: State, moment: Moment) -> None:
    fresh = State(
        clock=state.clock,
        first=moment,
        latest=moment,
        server=state.server,
        engine_lines=state.engine_lines,
        starts=state.starts + 1,
    )
    if "server_version" in state.events and not state.failures:
        fresh.events = {
            name: kept
            for name, kept in state.events.items()
            if name in ("server_version", "arguments", "banner", "platform")
        }
    for name in State.__slots__:
        setattr(state, name, getattr(fresh, name))


def _look_later(state: State, block: Block, text: bytes, start: int) -> None:
    """What follows readiness is searched for a failure of the whole engine, nothing else."""
    rest = text[start:] if start else text
    if state.shutdown_line is None:
        places = [at for needle in failures.SHUTDOWN if (at := rest.find(needle)) >= 0]
        if places:
            state.shutdown_line = _number(block, start + min(places))
    places = [at for needle in failures.LATER if (at := rest.find(needle)) >= 0]
    if not places:
        return
    at = min(places)
    begin = rest.rfind(b"\n", 0, at) + 1
    end = rest.find(b"\n", at)
    line = split(rest[begin : end if 0 <= end < begin + LONGEST else begin + LONGEST])
    number = _number(block, start + begin)
    found = failures.failure_in(line.text, number, "server")
    state.later = found or failures.Failure(
        text=line.text[: failures.LONGEST],
        whole=line.text[: failures.LONGEST],
        line=number,
        kind="other",
        stage="server",
        generic=True,
    )


def _see_last(state: State, block: Block, text: bytes, end: int) -> None:
    """Sees the last line before `end` that has a time: none of the telling ones need be it."""
    for begin, stop in islice(_backward(text, end), _STAMP_LINES):
        if _stamped(line := split(text[begin:stop])):
            state.saw(line, _number(block, begin), block.arrived)
            return


def _stamped(line: Line) -> bool:
    return bool(line.engine or line.container or line.clock)


def _number(block: Block, at: int) -> int:
    return block.before + 1 + block.data.count(b"\n", 0, at)


def _forward(text: bytes) -> Iterator[tuple[int, int]]:
    """Lines that hold a time of day, from the first one on."""
    at = 0
    for _ in range(_STAMP_SEARCH):
        at = text.find(b":", at)
        if at < 0:
            return
        if _TIME_OF_DAY.match(text, max(0, at - 2)):
            start, stop = _line_around(text, at, len(text))
            yield start, stop
            at = text.find(b"\n", at)
            if at < 0:
                return
        at += 1


def _backward(text: bytes, end: int) -> Iterator[tuple[int, int]]:
    """Lines that hold a time of day, from the last one before `end` on."""
    at = end
    for _ in range(_STAMP_SEARCH):
        at = text.rfind(b":", 0, at)
        if at < 0:
            return
        if _TIME_OF_DAY.match(text, max(0, at - 5)):
            start, stop = _line_around(text, at, end)
            yield start, stop
            at = start


def _line_around(text: bytes, at: int, end: int) -> tuple[int, int]:
    start = text.rfind(b"\n", 0, at) + 1
    stop = text.find(b"\n", at, end)
    return start, min(end if stop < 0 else stop, start + LONGEST)
