"""Made-up samples and runs for the tests of the report.

`python -m tests.tiny_report` writes tests/golden/run/records.jsonl and tests/golden/report.txt
anew: look at the difference before committing it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.page.terminal import render
from bench.record.records import CacheRecord, Run, Sample, Seconds, StorageRecord, read_run

GOLDEN = Path(__file__).parent / "golden"
NBYTES = 1_000_000_000  # so that a rate in GB/s is one over the seconds
NVME = StorageRecord(label="nvme", file_system="xfs", mount="/mnt/nvme", device="nvme0n1")
NET = StorageRecord(label="net", file_system="nfs4", mount="/mnt/net")
STRANGER = "odd[red]\x1b[31m\nname"


def load(
    loader: str,
    rate: float,
    number: int = 1,
    *,
    cache: str = "cold",
    state: str | None = None,
    storage: StorageRecord | None = NVME,
    ownership: str = "owned",
    options: Mapping[str, Any] | None = None,
    threads: int | None = None,
    **more: Any,
) -> Sample:
    """A sample that brought one GB at `rate` GB/s; its parts are made up around that."""
    total = 1 / rate
    options = dict(options or {})
    label = storage.label if storage else "-"
    text = ",".join(f"{key}={value}" for key, value in sorted(options.items())) or "-"
    parts = ["disk_to_host", loader, text, "made-up", "1GB", "bfloat16", f"t{threads or '-'}"]
    return replace(
        Sample(
            case="/".join([*parts, cache, "cpu", "tp1", label]),
            phase="disk_to_host",
            loader=loader,
            options=options,
            threads=threads,
            model="made-up",
            size=NBYTES,
            dtype="bfloat16",
            storage=storage,
            pass_number=number,
            status="ok",
            bytes=NBYTES,
            seconds=Seconds(
                open=0.001,
                allocate=0.1 * total if ownership == "owned" else 0.0,
                read=0.6 * total,
                consume=0.25 * total,
                total=total,
            ),
            runner_seconds=total + 0.0004,
            wall_seconds=total + 0.5,
            cache=CacheRecord(
                requested=cache,
                resident_before=0.0 if cache == "cold" else 1.0,
                device_read_bytes=NBYTES if cache == "cold" else 0,
                state=state or cache,  # type: ignore[arg-type]
            ),
            cpu_seconds=0.5 * total,
            system_seconds=0.3 * total,
            minor_faults=4000,
            major_faults=40 if ownership == "mapped" else 0,
            peak_rss_bytes=NBYTES + (300 << 20),
            rss_before_bytes=300 << 20,
            ownership=ownership,
            verified=True,
        ),
        **more,
    )


def ceiling(loader: str, rate: float, number: int = 1, **more: Any) -> Sample:
    """A ceiling at `rate` GB/s; what reads no storage has `storage=None, cache="none"`."""
    made = load(loader, rate, number, **{"ownership": "borrowed", **more})
    case = made.case.replace("disk_to_host", "ceiling", 1)
    return replace(made, phase="ceiling", case=case)


def unmeasured(loader: str, status: str, reason: str, number: int = 1, **more: Any) -> Sample:
    made = load(loader, 1.0, number, **more)
    return replace(
        made,
        status=status,  # type: ignore[arg-type]
        reason=reason,
        bytes=None,
        seconds=Seconds(),
        runner_seconds=None,
        wall_seconds=None,
        cache=CacheRecord(requested=made.cache.requested),
        cpu_seconds=None,
        system_seconds=None,
        minor_faults=None,
        major_faults=None,
        peak_rss_bytes=None,
        rss_before_bytes=None,
        ownership=None,
        verified=None,
    )


def made_run(*samples: Sample, **plan: Any) -> Run:
    """A run with these samples, on a host of two cores."""
    return Run(
        path=Path("runs/made-up/records.jsonl"), plan={**PLAN, **plan}, host=HOST, samples=samples
    )


PLAN: dict[str, Any] = {
    "kind": "plan",
    "schema": 1,
    "started": "2026-01-02T03:04:05+00:00",
    "model": "made-up",
    "size": NBYTES,
    "dtype": "bfloat16",
    "passes": 3,
    "seed": 7,
    "budget": 180.0,
    "smoke": False,
    "notes": ["size halved from 1.86 GiB to 953.67 MiB, so that the run fits --budget=180s"],
    "cases": [],
}
HOST: dict[str, Any] = {
    "kind": "host",
    "schema": 1,
    "command": "pytest --benchmark-only",
    "cores": 2,
    "host": {
        "cpu": {"model": "Made-up Processor"},
        "storage": {
            "nvme": {"fs_type": "xfs", "block": {"disk": "nvme0n1"}},
            "net": {"fs_type": "nfs4", "block": None},
        },
    },
    "coldness": {
        "nvme": "cold",
        "net": "cold here, but nfs4 may be answered from a server's cache",
    },
    "residency": {"nvme": "cachestat", "net": "cachestat"},
}


def golden_samples() -> list[Sample]:
    """Three passes over two storages, with one of everything that a run can hold."""
    found: list[Sample] = []
    here: dict[str, Any] = {"storage": None, "cache": "none"}
    ring = {"direct": True, "block": 4 << 20, "threads": 4}
    for number, drift in ((1, 1.0), (2, 1.1), (3, 0.9)):
        found += [
            ceiling("direct-ring", 2.0 * drift, number, details=ring),
            ceiling("owned-read", 1.0 * drift, number, options={"pages": "4k"}),
            ceiling("owned-read", 1.6, number, options={"pages": "huge"}, cache="warm"),
            ceiling("cache-ring", 5.0, number, cache="warm"),
            ceiling("direct-ring", 0.5 * drift, number, storage=NET, details=ring),
            ceiling("memory-read", 8.0, number, **here),
            ceiling("memory-copy", 4.0, number, options={"copiers": 1}, **here),
            ceiling("memory-copy", 6.0, number, options={"copiers": 2}, **here),
            ceiling("first-touch", 3.0, number, options={"pages": "huge"}, **here),
            ceiling("nothing", 1000.0, number, bytes=0, **here),
            load("parallel", 0.96 * drift, number, threads=2),
            load("safetensors-threads", 0.5 * drift, number, threads=2, ownership="mapped"),
            load("safetensors-mmap", 1.5, number, cache="warm", ownership="mapped"),
            load("example", 1.2 * drift, number),
            load("safetensors-mmap", 0.1 * drift, number, ownership="mapped", storage=NET),
        ]
    found += [
        load("safetensors-mmap", 0.9, 1, ownership="mapped"),
        load("safetensors-mmap", 0.97, 2, ownership="mapped"),
        load("safetensors-mmap", 3.0, 3, ownership="mapped", state="mixed"),
        load("safetensors-mmap", 0.92, 1, ownership="mapped", options={"twin": True}),
        load("safetensors-mmap", 0.95, 2, ownership="mapped", options={"twin": True}),
        unmeasured("pt", "failed", "the child ended by SIGBUS", 1, options={"mmap": True}),
        unmeasured("npcache", "skipped", "reads npcache; this model is safetensors", 1),
        unmeasured("npcache", "skipped", "reads npcache; this model is safetensors", 2),
        load(STRANGER, 0.7, 1, details={"notes": ["mmap refused:\n\x1b[2J[bold]read without"]}),
    ]
    late = load("safetensors-eager", 0.4, 1)
    found += [replace(late, status="failed", reason="the clocks disagree: 2.5 s, 3.5 s"), late]
    return found


def golden_report(width: int | None = None) -> str:
    """The report of the stored records, as if they lay in runs/made-up."""
    run = read_run(GOLDEN / "run")
    return render(replace(run, path=Path("runs/made-up/records.jsonl")), width=width)


def write() -> None:
    samples = golden_samples()
    plan = {**PLAN, "cases": sorted({sample.case for sample in samples})}
    lines = [plan, HOST, *(sample.to_json() for sample in samples)]
    path = GOLDEN / "run" / "records.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (GOLDEN / "report.txt").write_text(golden_report())


if __name__ == "__main__":
    write()
