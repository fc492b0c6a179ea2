"""What was watched, as one JSON document: the cold-start record, and beside it what was seen.

The record's fields are those of `coldload explain`. Under `watch`:
    command, started        the command line, its secrets hidden; when, in UTC
    outcome                 ended, interrupted, timeout or died; stopped_by: the last signal needed
    ready_seconds, ready_by since the engine was started; by its line (log) or its answer (url)
    first_token             {seconds, request_seconds, reason}, null if it wasn't asked for
    exit_code, how_it_ended of the engine's first process; left_over: processes that it left behind
    stages, whole           each with begin and end, what it was made of, and the figures for that
    own                     what watching cost: {cpu_seconds, share_of_core, looks}
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from bench.explain.record import ColdStart, Status
from bench.explain.secrets import masked_command, without_secrets
from bench.watch.engine import how_it_ended
from bench.watch.makeup import KINDS, make_up
from bench.watch.samples import Span
from bench.watch.stages import TITLES, Stage
from bench.watch.watched import Watched

_DIGITS = 4


def status(seen: Watched) -> Status:
    """Ready if it ever was, by its log or by the URL where one was to tell. Else failed if
    its first process failed or its log says so."""
    told = seen.reader.record().status
    if seen.ready is not None or (told == "ready" and not seen.by_url):
        return "ready"
    if seen.outcome == "died" or (told == "failed" and seen.outcome == "ended"):
        return "failed"
    return "incomplete"


def record(seen: Watched) -> ColdStart:
    """What the log told, with what only the watcher knows: the exit code of an engine that died
    without a word, readiness that a URL told, and times better than the log's whole seconds."""
    told = seen.reader.record()
    now = status(seen)
    failure, kind = told.failure, told.failure_kind
    if now == "failed" and failure is None and seen.returncode is not None:
        failure, kind = f"the engine ended with {how_it_ended(seen.returncode)}", "other"
    if now != "failed":
        failure = kind = None
    wall = told.phases.startup_wall_secs
    first, ready = seen.reader.state.first, seen.reader.state.ready
    if first and ready and first.arrival is not None and ready.arrival is not None:
        wall = round(max(0.0, ready.arrival - first.arrival), _DIGITS)
    return replace(
        told,
        status=now,
        failure=failure,
        failure_kind=kind,
        phases=replace(told.phases, startup_wall_secs=wall),
    )


def exit_code(seen: Watched) -> int:
    """0 it became ready (and ended well, if it was kept), 1 it failed or never was ready, 3 it
    ended well and nothing that it printed was an engine's, 130 interrupted."""
    if seen.outcome == "interrupted":
        return 130
    if seen.outcome == "died":
        return 1
    if status(seen) == "ready":
        return 0
    nothing = seen.outcome == "ended" and not seen.reader.state.engine_lines
    return 3 if nothing else 1


def document(seen: Watched) -> dict[str, Any]:
    """See the module's text. Everything in it is plain JSON, and no secret that is known."""
    found: dict[str, Any] = without_secrets(_document(seen), seen.secrets)
    return found


def _document(seen: Watched) -> dict[str, Any]:
    token = seen.first_token
    return {
        **record(seen).to_json(),
        "watch": {
            "command": shlex.join(masked_command(seen.command)),
            "started": datetime.fromtimestamp(seen.begun_at, UTC).isoformat(),
            "outcome": seen.outcome,
            "stopped_by": seen.stopped_by,
            "ready_seconds": _rounded(seen.ready),
            "ready_by": seen.ready_by,
            "first_token": None
            if token is None
            else {
                "seconds": _rounded(seen.first_token_at),
                "request_seconds": _rounded(token.seconds),
                "reason": token.reason,
            },
            "ended_seconds": _rounded(seen.ended),
            "exit_code": seen.returncode,
            "how_it_ended": None if seen.returncode is None else how_it_ended(seen.returncode),
            "left_over": seen.left_over,
            "lines": seen.reader.lines,
            "streams_nobody_read": list(seen.broken),
            "stages": stages(seen),
            "whole": _described(Stage(name="whole", begin=0.0, end=seen.watched_until), seen),
            "device_memory_reason": seen.device_memory_reason,
            "own": {
                "cpu_seconds": _rounded(seen.own_cpu_seconds),
                "share_of_core": _rounded(seen.own_cpu_share),
                "looks": len(seen.series),
            },
        },
    }


def stages(seen: Watched) -> list[dict[str, Any]]:
    return [_described(stage, seen) for stage in seen.stages.until(seen.watched_until)]


def _described(stage: Stage, seen: Watched) -> dict[str, Any]:
    seconds = stage.end - stage.begin
    span = seen.series.between(stage.begin, stage.end)
    return {
        "name": stage.name,
        "title": TITLES.get(stage.name, stage.name),
        "begin": _rounded(stage.begin),
        "end": _rounded(stage.end),
        "seconds": _rounded(seconds),
        "share": _rounded(seconds / seen.watched_until if seen.watched_until else None),
        "explained": stage.explained,
        "made_of": None if span is None else _made_of(span),
        "counted": None if span is None else _counted(span),
    }


def _made_of(span: Span) -> dict[str, Any]:
    made = make_up(span)
    return {
        "main": made.main,
        "seconds": {kind: _rounded(made.seconds[kind]) for kind in KINDS},
        "told_by": made.witness,
    }


def _counted(span: Span) -> Mapping[str, Any]:
    made = make_up(span)
    found = {name: value for name, value in asdict(span).items() if name != "counts"}
    found = {**asdict(span.counts), **found, "cores": made.cores, "device_gbps": made.device_gbps}
    return {
        name: _rounded(value) if isinstance(value, float) else value
        for name, value in found.items()
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
