"""A run of a node's ranks: every way in every pass, each in its own order, every sample on disk at
once. A case that fails costs its own sample: the ranks are started anew for what is left."""

from __future__ import annotations

import random
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.ground.storages import Storage
from bench.host.facts import host_facts
from bench.measuring.cores import effective_cores
from bench.measuring.deviceread import group_read_bytes
from bench.measuring.pagecache import evict
from bench.ranks.job import Job, Way, expected_digests
from bench.ranks.measure import Seen, load, prove
from bench.ranks.team import Nodes, RankError, Team
from bench.record.cachestate import cache_state
from bench.record.cases import Case
from bench.record.records import SCHEMA, CacheRecord, Sample, Seconds, Writer
from bench.sizes import short_size
from loaders.store.address import masked

Say = Callable[[str], None]
ATTEMPTS = 3
"""Starts of torchrun that may fail one after the other before the rest is given up."""


@dataclass(slots=True, kw_only=True)
class Course:
    """What is measured where. `seed` decides the order, the same on every node; `log` gets what
    ranks printed before they failed."""

    job: Job
    nodes: Nodes
    storage: Storage
    model: str
    ways: Sequence[Way]
    passes: int
    seed: int
    log: Path | None = None
    say: Say = lambda text: None
    samples: list[Sample] = field(default_factory=list)

    @property
    def paths(self) -> list[Path]:
        return [Path(file.path) for file in self.job.checkpoint.files]

    def case(self, way: Way) -> Case:
        return Case(
            phase="ranks",
            loader=way,
            options={"ranks": self.nodes.world},
            threads=self.job.threads,
            cache="cold" if self.storage.cold_kind != "memory" else "warm",
            storage=self.storage.label,
            device=self.job.kind,
            layout=self.job.layout,
        )

    def blank(self, way: Way, number: int) -> Sample:
        case, checkpoint = self.case(way), self.job.checkpoint
        dtype = next(iter(checkpoint.dtype_bytes), "-")
        size = checkpoint.tensor_bytes
        return Sample(
            case=case.case_id(model=self.model, size=short_size(size), dtype=dtype),
            phase=case.phase,
            loader=case.loader,
            options=dict(case.options),
            threads=case.threads,
            model=self.model,
            size=size,
            dtype=dtype,
            storage=self.storage.record,
            device=case.device,
            layout=case.layout,
            pass_number=number,
            status="failed",
            cache=CacheRecord(requested=case.cache),
        )

    def order(self) -> list[tuple[int, Way]]:
        found: list[tuple[int, Way]] = []
        for number in range(1, self.passes + 1):
            ways = list(self.ways)
            random.Random(f"{self.seed}/{number}").shuffle(ways)
            found += [(number, way) for way in ways]
        return found


def run(course: Course, writer: Writer) -> None:
    """Measures the whole course. Each sample is in `course.samples` and written."""
    _begin(course, writer)
    course.say("reading what each rank's parameters must hold")
    plans = course.job.parameters(course.nodes.own)
    digests = expected_digests(course.job.checkpoint, plans)
    order = course.order()
    done, attempt, failures = 0, 0, 0
    while done < len(order):
        with ExitStack() as stack:
            try:
                ranks = f"{course.nodes.nproc} of {course.nodes.world} ranks"
                course.say(f"starting {ranks}")
                team = stack.enter_context(
                    Team(course.job, course.nodes, attempt=attempt, keep=course.log)
                )
                while done < len(order):
                    number, way = order[done]
                    course.say(f"pass {number} of {course.passes}: {way}")
                    found = _measured(course, team, digests, number, way)
                    done += 1
                    failures = 0
                    _keep(course, writer, found)
                    if found.status == "failed" and found.verified is None:
                        break  # a rank is gone, and with it all of them
            except RankError as error:  # before the first sample
                failures += 1
                if failures == ATTEMPTS:
                    reason = f"{error}; the ranks couldn't be started {ATTEMPTS} times"
                    for number, way in order[done:]:
                        _keep(course, writer, replace(course.blank(way, number), reason=reason))
                    return
                course.say(str(error))
        attempt += 1


def _keep(course: Course, writer: Writer, found: Sample) -> None:
    course.samples.append(found)
    writer.append(found.to_json())


def _measured(
    course: Course, team: Team, digests: list[dict[str, str]], number: int, way: Way
) -> Sample:
    storage, paths = course.storage, course.paths
    began = time.perf_counter()
    blank = course.blank(way, number)
    resident: float | None = None
    before: int | None = None

    def look() -> None:
        nonlocal resident, before
        resident = storage.residency.resident_fraction(paths)
        before = group_read_bytes()

    seen: Seen | None = None
    try:
        eviction = evict(paths, storage.residency)
        seen = load(team, course.job, way, charged=bool(storage.charged), go=look)
        after = group_read_bytes()
        faults = prove(team, course.job, lambda: digests)
    except RankError as error:
        done = seen.ranks if seen is not None else list(error.heard.values())
        known_of_it = {"ranks": done, "world": course.nodes.world, "node": course.nodes.rank}
        return replace(blank, reason=str(error), details=known_of_it)
    details: dict[str, Any] = seen.details(team, course.job)
    fetched, asked = details["fetched_bytes"], blank.cache.requested
    notes = [*eviction.notes, *seen.notes]
    return replace(
        blank,
        status="failed" if faults else "ok",
        reason="; ".join(faults) or None,
        bytes=sum(one["bytes"] for one in seen.ranks),
        seconds=Seconds(read=details["last_done"], total=details["last_done"]),
        wall_seconds=time.perf_counter() - began,
        cache=CacheRecord(
            requested=asked,
            resident_before=resident,
            device_read_bytes=fetched,
            group_read_bytes=None if before is None or after is None else after - before,
            state=cache_state(asked, resident, fetched, seen.due),
        ),
        cpu_seconds=seen.counters["cpu_seconds"],
        system_seconds=seen.counters["system_seconds"],
        minor_faults=seen.counters["minor_faults"],
        major_faults=seen.counters["major_faults"],
        ownership="owned" if course.job.kind == "cpu" else "device",
        verified=not faults,
        details={**details, "due_bytes": seen.due, **({"notes": notes} if notes else {})},
    )


def _begin(course: Course, writer: Writer) -> None:
    blanks = [course.blank(way, 1) for way in course.ways]
    nodes = course.nodes
    writer.append(
        {
            "kind": "plan",
            "schema": SCHEMA,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "model": course.model,
            "size": blanks[0].size,
            "dtype": blanks[0].dtype,
            "passes": course.passes,
            "seed": course.seed,
            "budget": None,
            "smoke": False,
            "notes": [],
            "cases": [blank.case for blank in blanks],
            "ranks": {"world": nodes.world, "nodes": nodes.count, "node": nodes.rank},
        }
    )
    storage = course.storage
    writer.append(
        {
            "kind": "host",
            "schema": SCHEMA,
            "command": shlex.join([Path(sys.argv[0]).name, *map(masked, sys.argv[1:])]),
            "cores": effective_cores(),
            "host": host_facts({storage.label: storage.path}),
            "stores": {},
            "first_look": {},
            "coldness": {storage.label: storage.coldness},
            "residency": {storage.label: storage.residency.method},
        }
    )
