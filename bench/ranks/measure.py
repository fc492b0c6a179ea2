"""One sample of a node's ranks: they get ready, are let go, say what they did, and prove it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.ranks.job import Job, Way, distinct_bytes
from bench.ranks.team import PROVING, RankError, Team, fault_of
from bench.ranks.times import rank_record, summed_counters, together

READY = 300.0
"""Seconds for touching and freeing memory before the go."""


@dataclass(slots=True, kw_only=True)
class Seen:
    """What came of one sample here. `due` are the bytes that a cold load must fetch, `counters` the
    kernel's of all ranks."""

    ranks: list[dict[str, Any]] = field(default_factory=list)
    counters: dict[str, Any] = field(default_factory=dict)
    due: int = 0
    notes: list[str] = field(default_factory=list)

    def details(self, team: Team, job: Job) -> dict[str, Any]:
        nodes = team.nodes
        return {
            "ranks": self.ranks,
            **{k: v for k, v in together(self.ranks).items() if k != "bytes"},
            "world": nodes.world,
            "nodes": nodes.count,
            "node": nodes.rank,
            "collective": team.collective,
            "file_bytes": job.checkpoint.file_bytes,
        }


def load(team: Team, job: Job, way: Way, *, charged: bool, go: Callable[[], None]) -> Seen:
    """All of the team's ranks load, from the go to the last one's done. `go` is called when every
    rank waits to be let go: the last look at the page cache. RankError if a rank dies, hangs or
    raises; its `heard` then has the records of those that were done."""
    team.tell({"case": way})
    try:
        team.gather("ready", READY)
        go()
        team.tell({"go": True})
        reports = team.gather("done", job.timeout)
    except RankError as error:
        done = {rank: one for rank, one in error.heard.items() if "began" in one}
        raise RankError(str(error), _records(team, done, charged)) from error
    seen = Seen(counters=summed_counters(list(reports.values())))
    seen.ranks = list(_records(team, reports, charged).values())
    for report in reports.values():
        seen.notes += [note for note in report["notes"] if note not in seen.notes]
    asked = sum(report["asked"] or 0 for report in reports.values())
    seen.due = asked if way == "scatter" else distinct_bytes(job.parameters(team.nodes.own))
    return seen


def prove(team: Team, job: Job, digests: Callable[[], Sequence[dict[str, str]]]) -> list[str]:
    """The parameters of each rank that hold something else than `digests` says, by rank of this
    node. RankError as of `load`."""
    team.tell({"prove": True})
    found = team.gather("digests", job.timeout + PROVING)
    faults: list[str] = []
    for rank, expected in zip(team.nodes.own, digests(), strict=True):
        faults += fault_of(expected, found[rank]["digests"], rank)
    return faults


def _records(
    team: Team, reports: dict[int, dict[str, Any]], charged: bool
) -> dict[int, dict[str, Any]]:
    zero = min((report["began"] for report in reports.values()), default=0.0)
    return {
        rank: rank_record(
            report,
            rank=rank,
            host=team.members[rank].who.host,
            pid=team.members[rank].who.pid,
            zero=zero,
            charged=charged,
        )
        for rank, report in sorted(reports.items())
    }
