"""Everything that `coldload explain` says about one log, JSON-able."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from bench.explain.diagnose import diagnose
from bench.explain.fleet import fleet
from bench.explain.lines import open_log
from bench.explain.model import finding, fit
from bench.explain.parse import parse
from bench.explain.record import ColdStart
from bench.explain.savings import Rates, savings
from bench.explain.secrets import without_secrets
from bench.explain.state import State
from bench.explain.timeline import WEIGHTS, Timeline, timeline
from loaders.checkpoint.manifest import Checkpoint


class NoEngineLinesError(Exception):
    """The log holds none of an engine's lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """A fleet, as asked for; the bandwidth in bytes/s."""

    count: int
    shared_bandwidth: float | None
    starts_per_day: float


def read(path: str) -> State:
    """The folded log at `path` (`-` is standard input). OSError, NoEngineLinesError."""
    with open_log(path) as (source, live):
        state = parse(source, live=live)
    told = {name for name in state.events if name not in ("ready", "at_work", "arguments")}
    if not (told or state.engine_lines):
        raise NoEngineLinesError(
            f"{path}: no engine lines found; give all that the engine printed "
            "while it started, its standard error too (2>&1)"
        )
    return state


def document(
    path: str,
    state: State,
    record: ColdStart,
    *,
    checkpoint: Checkpoint | None = None,
    rates: Rates | None = None,
    replicas: Replicas | None = None,
) -> tuple[dict[str, Any], Timeline]:
    """The record with `log`, `timeline`, `diagnosis`, `savings`, and what else was asked
    for, without the secrets that an engine printed into its lines."""
    times = timeline(state, record)
    findings = diagnose(state, record, times)
    found: dict[str, Any] = {"log": path, **record.to_json(), "timeline": _timeline(times)}
    if checkpoint is not None:
        found["model_fit"] = fit(checkpoint, record)
        told = finding(found["model_fit"], record)
        findings += [told] if told else []
    nbytes = bytes_of(state, record, checkpoint)
    found["diagnosis"] = [{**asdict(one), "evidence": list(one.evidence)} for one in findings]
    found["savings"] = [one.to_json() for one in savings(record, times, nbytes, rates)]
    if rates is not None:
        found["rates"] = asdict(rates)
    wall = record.phases.startup_wall_secs
    if replicas is not None and wall is not None:
        weights = sum(stage.seconds for stage in times.stages if stage.name == WEIGHTS)
        found["fleet"] = fleet(
            wall=float(wall),
            weights=min(weights, float(wall)),
            nbytes=nbytes,
            replicas=replicas.count,
            shared_bandwidth=replicas.shared_bandwidth,
            starts_per_day=replicas.starts_per_day,
        ).to_json()
    return without_secrets(found), times


def bytes_of(state: State, record: ColdStart, checkpoint: Checkpoint | None) -> float | None:
    """Bytes of the checkpoint: its own, else what the engine printed, else what the workers hold
    together, which is about the same (embeddings and small tensors stand on several)."""
    if checkpoint is not None:
        return float(checkpoint.file_bytes)
    if printed := state.one("file_system"):
        return printed.number(1) * 2**30
    held = record.phases.weights_gb_by_worker
    ranks = (record.tensor_parallel_size or 1) * (record.pipeline_parallel_size or 1)
    if not held or not record.phases.weights_gb or len(record.ep_ranks) > ranks:
        return None
    if len(record.dp_engines) > 1 and not record.ep_ranks:
        return max(held.values()) * ranks * 2**30
    return (sum(held.values()) if len(held) >= ranks else max(held.values()) * ranks) * 2**30


def _timeline(times: Timeline) -> dict[str, Any]:
    stages = [
        {**asdict(stage), "lines": list(stage.lines), "slowest": stage.slowest}
        for stage in times.stages
    ]
    return {"wall": times.wall, "stages": stages, "unexplained": times.unexplained}
