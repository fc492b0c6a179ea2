"""One sample: make ready, let go, hear what came of it. The measuring loop's body.

The runner empties or fills the page cache, forks the child, looks at the residency once more, and
only then gives the go: what pytest-benchmark times is the go and the wait for `done`. The child
stamps itself; both clocks must agree, or the sample is thrown out, said so, and taken again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.ground.prepare import Prepared
from bench.measuring.children import Child, ChildError, Server
from bench.measuring.deviceread import group_read_bytes
from bench.measuring.pagecache import drop_caches, evict, fill_partly, warm
from bench.measuring.surroundings import Surroundings, company
from bench.record.cachestate import PRESENT, cache_state, share_of
from bench.record.cases import Case
from bench.record.records import CacheRecord, Company, Sample, Seconds
from loaders.system.residency import UNKNOWN, Residency

AGREE_SECONDS = 0.002
AGREE_PART = 0.01
AGREE_SMOKE_SECONDS = 0.1
"""In smoke mode, where figures mean nothing and the host may be busy with anything."""

ATTEMPTS = 5
READY_TIMEOUT = 300.0

Timed = Callable[[Callable[[], None]], None]
"""Runs the function once, under a clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """All that one sample needs: what the child runs, on which files, how long it may take.
    `proves` says that the child compares its result itself, whatever files there are."""

    case: Case
    blank: Sample
    target: str
    args: dict[str, Any]
    prepared: Prepared | None
    residency: Residency = UNKNOWN
    charged: bool | None = None
    timeout: float
    drop_host_cache: bool = False
    synthetic: bool = False
    proves: bool = False
    tuned: Mapping[str, Any] = field(default_factory=dict)
    surroundings: Surroundings | None = None


@dataclass(slots=True, kw_only=True)
class Heard:
    """What one child told, and what the runner saw meanwhile."""

    resident: float | None = None
    resident_after: float | None = None
    group_fetched: int | None = None
    runner_seconds: float = 0.0
    company: Company | None = None
    report: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def take(server: Server, job: Job, timed: Timed, on_discard: Callable[[Sample], None]) -> Sample:
    """One sample of the job. What the child couldn't do, or a file that is gone, becomes a `failed`
    sample with its reason; a sample whose clocks disagree goes to `on_discard` and is taken again,
    four times at most."""
    for attempt in range(ATTEMPTS):
        try:
            heard = _hear(server, job, timed if attempt == 0 else _untimed)
        except (ChildError, OSError) as error:
            return replace(job.blank, status="failed", reason=str(error))
        sample = _sample(job, heard)
        if sample.status == "ok" and not clocks_agree(sample):
            sample = replace(sample, status="failed", reason=_disagreement(sample))
            if attempt + 1 < ATTEMPTS:
                on_discard(sample)
                continue
        return sample
    raise AssertionError("unreachable")


def clocks_agree(sample: Sample) -> bool:
    """Whether runner and child say the same within 2 ms or 1 % (looser in smoke mode)."""
    assert sample.runner_seconds is not None
    assert sample.child_seconds is not None
    off = abs(sample.runner_seconds - sample.child_seconds)
    allowed = AGREE_SMOKE_SECONDS if sample.smoke else AGREE_SECONDS
    return off <= max(allowed, AGREE_PART * sample.child_seconds)


def _disagreement(sample: Sample) -> str:
    return (
        f"the clocks disagree: {sample.child_seconds:.4f} s by the child, "
        f"{sample.runner_seconds:.4f} s by the runner"
    )


def _untimed(run: Callable[[], None]) -> None:
    run()


def _hear(server: Server, job: Job, timed: Timed) -> Heard:
    heard = Heard()
    paths = job.prepared.paths if job.prepared else []
    heard.notes += _set_cache(job, paths)
    child = server.fork(job.target, **job.args)
    try:
        child.hear(READY_TIMEOUT)
        if paths and job.case.cache != "none":
            heard.resident = _resident(job, paths)
        before = group_read_bytes()
        timed(lambda: _go(child, job, heard))
        after = group_read_bytes()
        if before is not None and after is not None:
            heard.group_fetched = after - before
        if paths and job.case.cache == "warm":
            heard.resident_after = job.residency.resident_fraction(paths)
        heard.report = child.hear(job.timeout)
        heard.faults = child.hear(job.timeout)["faults"]
        child.finish()
    finally:
        child.kill()
    return heard


def _go(child: Child, job: Job, heard: Heard) -> None:
    """The timed region: between the looks at the host, which are part of neither clock. The child
    waits for `stopped` before it proves anything. The runner's clock stops when the kernel took the
    child's word: the runner slept meanwhile, and may be woken milliseconds later."""
    around = job.surroundings
    before = around.look() if around is not None else None
    began = time.perf_counter()
    child.tell({"go": True})
    child.hear(job.timeout)
    heard.runner_seconds = child.said_at - began
    after = around.look() if around is not None else None
    child.tell({"stopped": True})
    if before is not None and after is not None:
        storage = job.blank.storage
        heard.company = company(before, after, storage.device if storage else None)


def _resident(job: Job, paths: list[Path]) -> float | None:
    """The files' resident fraction right before the go. A kernel that takes back pages which nobody
    used for a moment (DAMON) may have taken some while the child got ready: warm ones are filled
    in once more."""
    resident = job.residency.resident_fraction(paths)
    if job.case.cache == "warm" and resident is not None and resident < PRESENT:
        return warm(paths, job.residency)
    return resident


def _set_cache(job: Job, paths: list[Path]) -> list[str]:
    if job.case.cache == "cold":
        eviction = evict(paths, job.residency)
        refused = drop_caches() if job.drop_host_cache else None
        return [*eviction.notes, *([refused] if refused else [])]
    if job.case.cache == "warm":
        warm(paths, job.residency)
    share = share_of(job.case.cache)
    if share is not None:
        eviction = evict(paths, job.residency)
        fill_partly(paths, share.fraction, share.stretch)
        return list(eviction.notes)
    return []


def _sample(job: Job, heard: Heard) -> Sample:
    report, case = heard.report, job.case
    counters, memory = report["counters"], report["memory"]
    fetched = counters["device_read_bytes"] if job.charged else None
    extra = {
        "tuned": dict(job.tuned),
        "counts": report.get("counts", {}),
        "absent_bytes": _absent(job, heard),
        "notes": [*heard.notes, *report["notes"]],
    }
    return replace(
        job.blank,
        status="failed" if heard.faults else "ok",
        reason="; ".join(heard.faults) or None,
        bytes=report["bytes"],
        seconds=Seconds(**report["seconds"]),
        runner_seconds=heard.runner_seconds,
        child_seconds=report["child_seconds"],
        cache=CacheRecord(
            requested=case.cache,
            resident_before=heard.resident,
            resident_after=heard.resident_after,
            device_read_bytes=fetched,
            group_read_bytes=heard.group_fetched,
            state=cache_state(
                case.cache,
                heard.resident,
                fetched,
                report.get("due", report["bytes"]),
                heard.resident_after,
            ),
        ),
        cpu_seconds=counters["cpu_seconds"],
        system_seconds=counters["system_seconds"],
        minor_faults=counters["minor_faults"],
        major_faults=counters["major_faults"],
        peak_rss_bytes=memory["peak"] if report["peak_reset"] else None,
        rss_before_bytes=memory["before"],
        rss_anon_bytes=memory["anonymous"],
        rss_file_bytes=memory["file"],
        ownership=report["ownership"],
        **_verdict(job, heard),
        company=heard.company,
        details={
            **report.get("details", {}),
            **{name: value for name, value in extra.items() if value},
        },
    )


def _absent(job: Job, heard: Heard) -> int | None:
    """Where a share was made resident: the bytes of the files that weren't in the page cache, to be
    held against those that came from the device."""
    if share_of(job.case.cache) is None or job.prepared is None or heard.resident is None:
        return None
    return round((1 - heard.resident) * sum(job.prepared.sizes))


def _verdict(job: Job, heard: Heard) -> dict[str, Any]:
    """The `verified` fields: compared with the reference and equal or not; else null, and why."""
    if heard.faults:
        return {"verified": False, "verified_reason": None}
    if heard.report.get("unproved"):
        return {"verified": None, "verified_reason": heard.report["unproved"]}
    if job.proves:
        return {"verified": True, "verified_reason": None}
    if job.synthetic:
        return {"verified": None, "verified_reason": "made-up values: names and shapes only"}
    if job.prepared is None:
        return {"verified": None, "verified_reason": "no file is read"}
    lacking = len(job.prepared.checkpoint.tensors) - len(job.prepared.reference.digests)
    if lacking:
        return {
            "verified": None,
            "verified_reason": f"{lacking} tensor(s) aren't one run of bytes in the file",
        }
    return {"verified": True, "verified_reason": None}
