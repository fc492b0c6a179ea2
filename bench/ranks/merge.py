"""The runs that the nodes of one measurement wrote, as one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from bench.ranks.times import added, together
from bench.record.records import CacheRecord, RecordsError, Run, Sample, Seconds, Writer
from loaders.checkpoint.text import listed


def merged(runs: Sequence[Run], writer: Writer) -> tuple[Sample, ...]:
    """Writes the runs' plan, their hosts and one sample for each case and pass, and returns the
    samples. RecordsError for runs that aren't the nodes of one measurement.

    A sample is `failed` where a node's is, or where a rank's record is missing; it is `cold` only
    where it was on every node. Times are those since the barrier let the ranks of each node go.
    """
    plans = [_plan(run) for run in runs]
    first = plans[0]
    nodes = {plan["ranks"]["node"]: run for plan, run in zip(plans, runs, strict=True)}
    if len(nodes) < len(runs):
        given = [plan["ranks"]["node"] for plan in plans]
        raise RecordsError(
            f"two of the runs are of one node (nodes {listed(given)}); name each once"
        )
    for run, plan in zip(runs, plans, strict=True):
        for key in ("model", "size", "passes", "seed", "cases"):
            if _comparable(plan, key) != _comparable(first, key):
                raise RecordsError(
                    f"{run.path}: its {key} isn't that of {runs[0].path}; give the runs of one "
                    "measurement"
                )
    first = _plan(nodes[min(nodes)])  # whose samples' ids the merged ones have
    absent = [node for node in range(first["ranks"]["nodes"]) if node not in nodes]
    ordered = [nodes[node] for node in sorted(nodes)]
    hosts = [run.host for run in ordered if run.host]
    writer.append({**first, "ranks": {**first["ranks"], "node": None}})
    if hosts:
        writer.append({**hosts[0], "nodes": [host.get("host") for host in hosts]})
    every = [(sample, node) for node, run in sorted(nodes.items()) for sample in run.settled()]
    every.sort(key=lambda one: (one[0].pass_number, one[0].loader))
    found = []
    for _, members in groupby(every, key=lambda one: (one[0].pass_number, one[0].loader)):
        sample = _joined({node: one for one, node in members}, absent)
        writer.append(sample.to_json())
        found.append(sample)
    return tuple(found)


def _plan(run: Run) -> Mapping[str, Any]:
    if run.plan is None or "ranks" not in run.plan:
        raise RecordsError(f"{run.path}: no run of coldload ranks; give those of its nodes")
    return run.plan


def _comparable(plan: Mapping[str, Any], key: str) -> Any:
    """A case's last part, the storage's label, may differ from node to node."""
    return [case.rpartition("/")[0] for case in plan[key]] if key == "cases" else plan[key]


def _joined(by_node: Mapping[int, Sample], absent: Sequence[int]) -> Sample:
    samples = list(by_node.values())
    first = samples[0]
    ranks = sorted(
        (one for sample in samples for one in sample.details.get("ranks", ())),
        key=lambda one: one["rank"],
    )
    world = max(sample.details.get("world", 0) for sample in samples)
    there = {one["rank"] for one in ranks}
    lacking = [rank for rank in range(world) if rank not in there]
    reasons = [f"node {n}: {one.reason}" for n, one in by_node.items() if one.reason]
    if absent:
        reasons.append(f"no run of node {listed(absent)} was given")
    if lacking:
        reasons.append(f"no record of rank {listed(lacking)}")
    ok = not reasons and all(sample.status == "ok" for sample in samples)
    times = together(ranks) if ranks else {}
    states = {sample.cache.state for sample in samples}
    total = times.get("last_done") if ok else None
    return replace(
        first,
        status="ok" if ok else "failed",
        reason="; ".join(reasons) or None,
        bytes=added(sample.bytes for sample in samples) if ok else None,
        seconds=Seconds(read=total, total=total),
        wall_seconds=max((one.wall_seconds or 0.0 for one in samples), default=None),
        cache=CacheRecord(
            requested=first.cache.requested,
            resident_before=_largest([one.cache.resident_before for one in samples]),
            device_read_bytes=added(one.cache.device_read_bytes for one in samples),
            group_read_bytes=added(one.cache.group_read_bytes for one in samples),
            state=states.pop() if len(states) == 1 else "mixed",
        ),
        cpu_seconds=added(one.cpu_seconds for one in samples),
        system_seconds=added(one.system_seconds for one in samples),
        minor_faults=added(one.minor_faults for one in samples),
        major_faults=added(one.major_faults for one in samples),
        verified=None
        if any(s.verified is None for s in samples)
        else all(sample.verified for sample in samples),
        details={
            **first.details,
            **{key: value for key, value in times.items() if key != "bytes"},
            "ranks": ranks,
            "node": None,
            "due_bytes": added(one.details.get("due_bytes") for one in samples),
        },
    )


def _largest(values: Sequence[float | None]) -> float | None:
    return (
        None if any(value is None for value in values) else max(v for v in values if v is not None)
    )
