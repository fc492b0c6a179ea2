"""Several ranks on one storage, cold. Measured only where it is asked for: `--ranks=2,4`, `--full`,
or `pytest bench/bench_ranks.py`. Each sample starts torchrun and imports torch once a rank, which
takes longer than all else of a default run together. `coldload ranks` keeps its ranks from sample
to sample, and spans nodes.
"""

from __future__ import annotations

from typing import Any, cast

from bench.ground.prepare import Prepared
from bench.measuring.channel import Channel
from bench.measuring.child import Stopwatch
from bench.measuring.work import Go, Outcome, perform
from bench.phases.contract import Asked, Phase
from bench.phases.slicing import degrees_of
from bench.phases.task import begin
from bench.ranks.job import WAYS, Job, Way, expected_digests
from bench.ranks.measure import load, prove
from bench.ranks.team import Nodes, Team
from bench.record.cases import Case
from bench.settings import DEFAULT_RANKS
from loaders.device.discover import device_texts
from loaders.slicing.errors import PlanError

SLOWEST = 10e6
LEAST = 60.0
"""Seconds that a case may take, and bytes for each one more."""

A_RANK = 400 << 20
"""Bytes of a process that has imported torch."""


def cases(asked: Asked) -> list[Case]:
    """Each way for each number of ranks: on as many devices where there are, else in host memory.
    A number of ranks is their tensor-parallel degree."""
    settings = asked.settings
    counts = settings.ranks or (DEFAULT_RANKS if settings.full else ())
    kind = asked.device.partition(":")[0]
    devices = len(device_texts()) if counts and kind != "cpu" else 0
    return [
        Case(
            phase="ranks",
            loader=way,
            options={"ranks": count},
            cache="cold",
            storage=label,
            device=kind if count <= devices else "cpu",
            layout=f"tp{count}" + ("-ep" if settings.ep else ""),
        )
        for label in asked.labels
        for count in counts
        for way in WAYS
        if "cold" in settings.caches
    ]


def job_of(ready: Any, layout: str, **given: Any) -> Job:
    degrees = degrees_of(layout)
    return Job(checkpoint=ready, world=degrees.tp, ep=degrees.ep > 1, **given)


def planned(case: Case, ready: Prepared) -> int:
    """Bytes of all ranks' parameters. PlanError."""
    job = job_of(
        ready.checkpoint, case.layout, kind=case.device, threads=1, touch_bytes=0, timeout=0.0
    )
    return sum(one.nbytes for plan in job.parameters(range(job.world)) for one in plan)


def refuses(case: Case, ready: Prepared) -> str | None:
    if ready.checkpoint.format != "safetensors":
        return f"the ways map and cut safetensors; this model is {ready.checkpoint.format}"
    try:
        planned(case, ready)
    except PlanError as error:
        return str(error)
    return None


def memory_bytes(case: Case, ready: Prepared) -> int:
    kept = planned(case, ready) if case.device == "cpu" else 0
    return kept + A_RANK * degrees_of(case.layout).tp


def measure(channel: Channel, **given: Any) -> None:
    """One sample: this child starts the ranks, lets them go and hears them. Its seconds are those
    from the go to the last rank's `done`, the barrier included; `details` has the ranks' own."""
    touch = given["touch_bytes"]
    task = begin({**given, "touch_bytes": 0})
    checkpoint = task.checkpoint
    world = degrees_of(task.layout).tp
    job = job_of(
        checkpoint,
        task.layout,
        kind=task.device,
        threads=max(2, task.cores // world),
        touch_bytes=touch // world,
        timeout=LEAST + checkpoint.file_bytes / SLOWEST,
    )
    way = cast(Way, task.way)
    with Team(job, Nodes(nproc=world)) as team:

        def work(go: Go, watch: Stopwatch) -> Outcome:
            seen = load(team, job, way, charged=True, go=go)
            return Outcome(
                nbytes=sum(one["bytes"] for one in seen.ranks),
                ownership="owned" if job.kind == "cpu" else "device",
                notes=seen.notes,
                find_out=lambda: {**seen.details(team, job), "due_bytes": seen.due},
                prove=lambda: prove(team, job, digests),
                instead={"counters": seen.counters, "peak_reset": False, "due": seen.due},
            )

        def digests() -> list[dict[str, str]]:
            # only now: before the go it would have warmed the page cache
            return expected_digests(checkpoint, job.parameters(range(world)))

        perform(channel, work, Stopwatch((), rest="read"))


RANKS = Phase(
    name="ranks",
    target="bench.phases.ranks:measure",
    cases=cases,
    memory_bytes=memory_bytes,
    refuses=refuses,
)
