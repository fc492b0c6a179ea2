"""The record of a folded log: which of several printed figures stands in each field."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bench.explain.ranks import ranks_of
from bench.explain.record import ColdStart, Number, Phases
from bench.explain.settings import NAMES, pairs, plain, setting
from bench.explain.state import Bar, Event, Moment, State

_PLATFORMS = {"ascend": "npu", "rocm": "cuda"}
Evidence = dict[str, tuple[int, ...]]


def build(state: State, given: Mapping[str, str] | None = None) -> ColdStart:
    """The record. `given` are settings that the user states (`--set`), which come first, then those
    of the arguments line, then those of the engine's configuration line."""
    evidence: Evidence = {}
    settings = _settings(state, given or {}, evidence)
    status, failure = status_of(state)
    if failure:
        evidence["failure"] = evidence["failure_kind"] = (failure.line,)
    version = state.one("engine")
    known = version if version and version.groups[1] else None
    version_event = known or state.one("server_version") or state.one("banner")
    vllm = (
        version_event.groups[1 if version_event.name == "engine" else 0] if version_event else None
    )
    if version_event:
        evidence["vllm_version"] = (version_event.moment.line,)
    engine, at = _engine(state)
    if engine and at:
        evidence["engine"] = (at,)
    ranks: Any = ranks_of(state, settings)
    return ColdStart(
        **settings,
        engine=engine,
        vllm_version=vllm.rstrip(").,") if vllm else None,
        device=_device(state, evidence),
        status=status,
        failure_kind=failure.kind if failure else None,
        failure=failure.text if failure else None,
        **ranks,
        phases=_phases(state, evidence, status == "ready", vllm, settings["tensor_parallel_size"]),
        evidence=evidence,
    )


def status_of(state: State) -> tuple[Any, Any]:
    if state.ready or (state.offline_ready and not state.server):
        return "ready", None
    root = state.failures.root()
    return ("failed", root) if root else ("incomplete", None)


def printed_settings(state: State) -> tuple[dict[str, str], dict[str, str]]:
    """`(arguments, configuration)`, as printed."""
    arguments = state.one("arguments")
    engine = state.one("engine")
    return (
        pairs(arguments.groups[0] or "") if arguments else {},
        pairs(engine.groups[2] or "") if engine else {},
    )


def _settings(state: State, given: Mapping[str, str], evidence: Evidence) -> dict[str, Any]:
    arguments, config = printed_settings(state)
    found: dict[str, Any] = {}
    for name in NAMES:
        value = plain(given[name]) if name in given else None
        if value is None and (value := setting(name, arguments)) is not None:
            evidence[name] = (state.events["arguments"][0].moment.line,)
        if value is None and (value := setting(name, config)) is not None:
            evidence[name] = (state.events["engine"][0].moment.line,)
        found[name] = value
    return found


def _engine(state: State) -> tuple[str | None, int | None]:
    """v0 or v1: as it calls itself, else by what only one of them prints."""
    for event in state.all("engine"):
        if event.groups[0]:
            return event.groups[0].lower(), event.moment.line
    for name, line in state.names.items():
        if name.startswith(("EngineCore", "CoreEngine", "Worker_", "VllmWorker ")):
            return "v1", line
    for event in state.all("tokens"):
        return "v1", event.moment.line
    for event in state.all("blocks"):
        if event.groups[0] != "num_gpu_blocks" and not event.groups[2]:
            return "v1", event.moment.line
    for event in (*state.all("blocks"), *state.all("engine")):
        if event.name == "engine" or event.groups[2]:
            return "v0", event.moment.line
    for event in state.all("capture_begin"):
        if re.match(r"the model|cudagraphs", event.groups[0] or ""):
            return "v0", event.moment.line
    return None, None


def _device(state: State, evidence: Evidence) -> str | None:
    arguments, config = printed_settings(state)
    for printed, name in ((config, "engine"), (arguments, "arguments")):
        for key in ("device_config", "device"):
            value = plain(printed[key]) if key in printed else None
            if isinstance(value, str) and re.fullmatch(r"[a-z]{2,12}", value) and value != "auto":
                evidence["device"] = (state.events[name][0].moment.line,)
                return value
    for event in state.all("platform"):
        evidence["device"] = (event.moment.line,)
        name = (event.groups[0] or "").lower()
        return _PLATFORMS.get(name, name)
    return None


def first_of_each(events: Iterable[Event]) -> dict[str, Event]:
    """The first event of each worker: a second load of the same worker is a drafter's."""
    found: dict[str, Event] = {}
    for event in events:
        found.setdefault(event.worker, event)
    return found


def main_weights(state: State) -> dict[str, Event]:
    """What "Loading weights took" of the main model says, by worker."""
    return first_of_each(state.all("weights_took"))


def load_times(state: State) -> dict[str, tuple[float, Event]]:
    """The whole of load_model by worker, from the wordings of all releases."""
    found: dict[str, tuple[float, Event]] = {}
    for name, group in (("model_took", 2), ("load_total", 0)):
        for worker, event in first_of_each(state.all(name)).items():
            value = event.number(group)
            if worker not in found or value > found[worker][0]:
                found[worker] = (value, event)
    return found


def sizes(state: State) -> dict[str, Event]:
    """Weights by worker: "Model loading took ... GiB" or "Loading model weights took ... GB"."""
    found = first_of_each(state.all("weights_size"))
    for worker, event in first_of_each(state.all("model_took")).items():
        found.setdefault(worker, event)
    return found


def _phases(
    state: State, evidence: Evidence, ready: bool, vllm: str | None, tp: int | None
) -> Phases:
    def pick(
        field: str, events: Iterable[Event], choose: Callable[..., Event], group: int = 0
    ) -> float | None:
        candidates = list(events)
        if not candidates:
            return None
        best = choose(candidates, key=lambda event: event.number(group))
        evidence[field] = (best.moment.line,)
        return best.number(group)

    by_worker = sizes(state)
    weights = pick("weights_gb", by_worker.values(), max)
    unit = None
    if by_worker:
        largest = max(by_worker.values(), key=lambda event: event.number())
        unit = largest.groups[1]
        evidence["weights_unit"] = (largest.moment.line,)
        evidence["weights_gb_by_worker"] = tuple(e.moment.line for e in by_worker.values())
    loads = load_times(state)
    load_seconds = max((value for value, _ in loads.values()), default=None)
    if loads:
        slowest = max(loads.values(), key=lambda pair: pair[0])[1]
        evidence["load_model_seconds"] = (slowest.moment.line,)
    bar = state.bar
    counted = bar is not None and counts_files(bar, vllm, tp)
    if bar:
        for field in ("shards_total", "shards_done", "shard_read_seconds"):
            evidence[field] = (bar.line,)
    override = list(state.all("override"))
    printed = [e for e in state.all("blocks") if e.groups[0] != "num_gpu_blocks"]
    counts = override or printed or list(state.all("blocks"))
    gpu = pick("num_gpu_blocks", counts, min, 1)
    cpu = pick("num_cpu_blocks", (e for e in printed if e.groups[2]), min, 2)
    tokens = pick("kv_cache_tokens", state.all("tokens"), min)
    compiled = pick("compile_seconds", state.all("compile"), max)
    if compiled is None:
        compiled = pick(
            "compile_seconds", (e for e in state.all("init_engine") if e.groups[1]), max, 1
        )
    capture = pick("graph_capture_secs", state.all("capture_end"), max)
    wall = wall_seconds(state) if ready else None
    if wall is not None and state.first and state.ready_event:
        evidence["startup_wall_secs"] = (state.first.line, state.ready_event.line)
    return Phases(
        weights_gb=weights,
        weights_unit=unit,
        weights_gb_by_worker={worker: event.number() for worker, event in by_worker.items()},
        weights_seconds=pick("weights_seconds", main_weights(state).values(), max),
        load_model_seconds=load_seconds,
        shards_total=bar.total if bar and counted else None,
        shards_done=bar.done if bar and counted else None,
        shard_read_seconds=bar.seconds if bar else None,
        download_seconds=pick("download_seconds", state.all("download"), max, 1),
        profiling_seconds=pick("profiling_seconds", state.all("profiling"), max),
        num_gpu_blocks=None if gpu is None else int(gpu),
        num_cpu_blocks=None if cpu is None else int(cpu),
        kv_cache_tokens=None if tokens is None else int(tokens),
        compile_seconds=compiled,
        graph_capture_secs=_whole(capture),
        init_engine_secs=pick("init_engine_secs", state.all("init_engine"), max),
        startup_wall_secs=wall,
    )


def counts_files(bar: Bar, vllm: str | None, tp: int | None) -> bool:
    """Whether a bar's total is a number of shard files."""
    if bar.counts == "files to 0.9":
        return version_of(vllm) < (0, 10) if vllm else False
    return bar.counts == "files" or (bar.counts == "groups" and tp == 1)


def version_of(text: str | None) -> tuple[int, ...]:
    """`0.8.5.post1` as (0, 8, 5); () for None."""
    return tuple(int(part) for part in re.findall(r"\d+", (text or "").split("post")[0])[:3])


def wall_seconds(state: State) -> Number | None:
    """From the first line with a time to the last one at or before readiness, on the one clock that
    has both: a container's where it stamps the ready line, else the engine's."""
    end = state.ready or state.offline_ready
    if end is None or state.first is None:
        return None
    for clock in ("container", "engine", "clock"):
        first, last = getattr(state.first, clock), getattr(end, clock)
        if first is not None and last is not None:
            if clock == "container" and not _stamped_at(state.ready_event, clock):
                continue
            return _whole(round(max(0.0, last - first), 3))
    if state.first.arrival is None or end.arrival is None:
        return None
    arrived = end.arrival - state.first.arrival
    # A log that is piped in afterwards arrives at once: its arrival times tell nothing.
    return None if arrived < _longest(state) else round(arrived, 3)


def _stamped_at(moment: Moment | None, clock: str) -> bool:
    return moment is not None and getattr(moment, clock) is not None


def _longest(state: State) -> float:
    durations = [
        e.number()
        for e in state.all("weights_took", "compile", "capture_end", "init_engine", "profiling")
    ]
    durations += [value for value, _ in load_times(state).values()]
    durations += [float(state.bar.seconds or 0)] if state.bar else []
    return max([0.001, *durations])


def _whole(value: float | None) -> Number | None:
    return int(value) if value is not None and value == int(value) else value
