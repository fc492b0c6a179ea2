"""The stages of a cold start: how long each took, what share of the wall time that is, which worker
was the slowest, and what no line explains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bench.explain.build import first_of_each, load_times, main_weights
from bench.explain.record import ColdStart, Phases
from bench.explain.state import Event, Moment, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """`seconds` as printed (`source` "printed") or between two lines' times ("between lines").
    `workers` maps names to their own seconds, where the log has several. `within` names the stage
    that an indented one is a part of: only stages without it add up."""

    name: str
    seconds: float
    share: float | None = None
    source: str
    lines: tuple[int, ...] = ()
    workers: Mapping[str, float] = field(default_factory=dict)
    within: str | None = None

    @property
    def slowest(self) -> str | None:
        return max(self.workers, key=lambda name: self.workers[name]) if self.workers else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """`unexplained` is what the stages leave of the wall time; negative where stages of several
    processes overlap. None without a wall time."""

    wall: float | None
    stages: tuple[Stage, ...]
    unexplained: float | None


START, WEIGHTS, PROFILING, POOL, CAPTURE, SERVER = (
    "engine and executor start",
    "weights",
    "profiling",
    "KV pool and warm-up",
    "graph capture",
    "server start",
)


def timeline(state: State, record: ColdStart) -> Timeline:
    phases = record.phases
    wall = phases.startup_wall_secs
    stages: list[Stage] = []
    begun, ended = (
        _first(state, "load_begin", "download"),
        _last(state, "model_took", "load_total", "weights_size", "weights_took"),
    )
    if begun and state.first and (start := _between(state.first, begun)) is not None:
        stages.append(_stage(START, start, "between lines", (state.first.line, begun.line)))
    stages += _weights(state, phases, record.evidence, begun, ended)
    stages += _engine(state, phases, record.evidence, ended)
    inited, ready = _last(state, "init_engine"), state.ready
    if inited and ready and record.status == "ready" and state.server:
        rest = _between(inited, ready)
        if rest is not None:
            stages.append(_stage(SERVER, rest, "between lines", (inited.line, ready.line)))
    explained = sum(stage.seconds for stage in stages if stage.within is None)
    shared = tuple(
        Stage(
            name=stage.name,
            seconds=stage.seconds,
            share=stage.seconds / wall if wall else None,
            source=stage.source,
            lines=stage.lines,
            workers=stage.workers,
            within=stage.within,
        )
        for stage in stages
    )
    return Timeline(
        wall=None if wall is None else float(wall),
        stages=shared,
        unexplained=None if wall is None else round(wall - explained, 3),
    )


def _weights(
    state: State,
    phases: Phases,
    evidence: Mapping[str, tuple[int, ...]],
    begun: Moment | None,
    ended: Moment | None,
) -> list[Stage]:
    """The weights stage and what is known of its parts. A download comes on top of what the
    engine prints as its load time only where that is less."""
    parts: list[Stage] = []
    loads = {worker: value for worker, (value, _) in load_times(state).items()}
    took = {worker: event.number() for worker, event in main_weights(state).items()}
    whole = phases.load_model_seconds or phases.weights_seconds
    field_name = "load_model_seconds" if phases.load_model_seconds else "weights_seconds"
    lines, source = evidence.get(field_name, ()), "printed"
    if whole is None and begun and ended and (span := _between(begun, ended)) is not None:
        whole, lines, source = span, (begun.line, ended.line), "between lines"
    if whole is None:
        return []
    if phases.download_seconds and phases.download_seconds > whole:
        parts.append(
            _stage("download", phases.download_seconds, "printed", evidence["download_seconds"])
        )
    workers = loads or took
    parts.append(
        Stage(
            name=WEIGHTS,
            seconds=whole,
            source=source,
            lines=lines,
            workers=workers if len(workers) > 1 else {},
        )
    )
    if phases.download_seconds and phases.download_seconds <= whole:
        parts.append(
            _stage(
                "download",
                phases.download_seconds,
                "printed",
                evidence["download_seconds"],
                WEIGHTS,
            )
        )
    if phases.shard_read_seconds is not None:
        parts.append(
            _stage(
                "shard bar",
                float(phases.shard_read_seconds),
                "printed",
                evidence["shard_read_seconds"],
                WEIGHTS,
            )
        )
    if phases.weights_seconds is not None and phases.load_model_seconds is not None:
        parts.append(
            _stage(
                "reading and copying",
                phases.weights_seconds,
                "printed",
                evidence["weights_seconds"],
                WEIGHTS,
            )
        )
        rest = phases.load_model_seconds - phases.weights_seconds
        if rest > 0:
            parts.append(
                _stage(
                    "model set-up and post-processing", round(rest, 3), "printed", lines, WEIGHTS
                )
            )
    return parts


def _engine(
    state: State,
    phases: Phases,
    evidence: Mapping[str, tuple[int, ...]],
    loaded: Moment | None,
) -> list[Stage]:
    """Profiling, pool and capture. "init engine" covers the three: what the other two don't
    explain of it is the pool and the warm-up."""
    stages: list[Stage] = []
    pool = _last(state, "tokens", "blocks") or _last(state, "available", "available_bytes")
    profiling, source = phases.profiling_seconds, "printed"
    lines = evidence.get("profiling_seconds", ())
    if (
        loaded
        and pool
        and (span := _between(loaded, pool)) is not None
        and (profiling is None or span >= profiling)
    ):
        profiling, source, lines = span, "between lines", (loaded.line, pool.line)
    if profiling is not None:
        stages.append(_stage(PROFILING, profiling, source, lines))
        if phases.compile_seconds is not None:
            stages.append(
                _stage(
                    "compiling",
                    phases.compile_seconds,
                    "printed",
                    evidence["compile_seconds"],
                    PROFILING,
                )
            )
    capture = phases.graph_capture_secs
    init = phases.init_engine_secs
    if init is not None:
        rest = init - (profiling or 0.0) - (capture or 0.0)
        if rest > 0:
            stages.append(_stage(POOL, round(rest, 3), "printed", evidence["init_engine_secs"]))
    if capture is not None:
        workers = {
            worker: event.number()
            for worker, event in first_of_each(state.all("capture_end")).items()
        }
        stages.append(
            Stage(
                name=CAPTURE,
                seconds=float(capture),
                source="printed",
                lines=evidence["graph_capture_secs"],
                workers=workers if len(workers) > 1 else {},
            )
        )
    return stages


def _stage(
    name: str, seconds: float, source: str, lines: tuple[int, ...], within: str | None = None
) -> Stage:
    return Stage(name=name, seconds=seconds, source=source, lines=lines, within=within)


def _first(state: State, *names: str) -> Moment | None:
    return _pick(state, names, min)


def _last(state: State, *names: str) -> Moment | None:
    return _pick(state, names, max)


def _pick(state: State, names: tuple[str, ...], choose: Callable[..., Event]) -> Moment | None:
    found = [event for event in state.all(*names) if _time(event.moment) is not None]
    return choose(found, key=lambda event: _time(event.moment)).moment if found else None


def _time(moment: Moment) -> float | None:
    for value in (moment.engine, moment.container, moment.clock, moment.arrival):
        if value is not None:
            return value
    return None


def _between(first: Moment, last: Moment) -> float | None:
    """Seconds between two moments on a clock that both have; None without one."""
    for clock in ("engine", "container", "clock", "arrival"):
        start, end = getattr(first, clock), getattr(last, clock)
        if start is not None and end is not None:
            return float(round(max(0.0, end - start), 3))
    return None
