"""Made-up runs that give advice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bench.advice.contract import Advice, Seen, see
from bench.record.records import Run, Sample
from tests.tiny_report import HOST, NBYTES, NET, ceiling, load, made_run

PASSES = (1, 2, 3)
MMAP: dict[str, Any] = {"ownership": "mapped"}
MIB, GIB = 1 << 20, 1 << 30


def times(name: str, rate: float, make: Callable[..., Sample] = load, **more: Any) -> list[Sample]:
    """The same in three passes, a little apart."""
    return [make(name, rate * (1 + n / 100), n, **more) for n in PASSES]


def run_on(samples: list[Sample], *, blocks: dict[str, Any] | None = None, **facts: Any) -> Run:
    """A run on a host with these facts; `blocks` are those of nvme's disk."""
    host = {**HOST["host"], **facts}
    nvme = {"fs_type": "xfs", "block": {"disk": "nvme0n1", **(blocks or {})}}
    host["storage"] = {**HOST["host"]["storage"], "nvme": nvme}
    return replace(made_run(*samples), host={**HOST, "host": host})


def found(kind: Callable[[Seen], Advice | None], run: Run, **more: Any) -> Advice | None:
    return kind(see(run, **more))


def said(kind: Callable[[Seen], Advice | None], run: Run, **more: Any) -> Advice:
    """The kind's advice, complete."""
    advice = found(kind, run, **more)
    assert advice is not None
    assert advice.title
    assert advice.seen
    assert advice.do
    assert advice.cost
    return advice


COUNTS = {"counts": {"made_ms": 5000, "file_bytes": 3 * MIB}}


def w8a8(
    way: str, rate: float, *, digest: str = "d", cache: str = "cold", **more: Any
) -> list[Sample]:
    details = {
        "state_digest": digest,
        "tensor_bytes": 64 * MIB,
        "fetched_bytes": NBYTES,
    }
    return times(
        way,
        rate,
        phase="w8a8",
        case=f"w8a8/{way}/{cache}",
        options={"into": "nz"},
        layout="tp8",
        cache=cache,
        details=details,
        **more,
    )


def kept(rate: float, layout: str = "tp8") -> list[Sample]:
    return times("snapshot", rate, ownership="borrowed", layout=layout, details=COUNTS)


def assembled(rate: float) -> list[Sample]:
    return times(
        "overlapped",
        rate,
        phase="assemble",
        case="assemble/overlapped",
        options={"into": "parameters"},
        layout="tp8",
    )


def copied(seconds: float) -> list[Sample]:
    return times("copy", 1 / seconds, phase="stage", storage=NET, options={"to": "nvme"})


def everything() -> Run:
    """A run with evidence for every kind."""
    half = load("pt", 1.0, cache="warm", state="mixed")
    to_device: dict[str, Any] = {
        "phase": "host_to_device",
        "device": "cuda:0",
        "storage": None,
        "cache": "none",
    }
    samples = [
        *times("safetensors-mmap", 0.5, **MMAP),
        *times("safetensors-mmap", 5.0, cache="warm", **MMAP),
        *times("safetensors-threads", 0.3, threads=2, **MMAP),
        *[s for n, r in ((2, 1.5), (8, 1.0)) for s in times("pt-threads", r, threads=n)],
        *times("pt", 0.1, storage=NET),
        *times("direct-ring", 2.0, ceiling),
        *times("owned-read", 1.0, ceiling, options={"pages": "4k"}),
        *times("owned-read", 2.0, ceiling, options={"pages": "huge"}),
        *times("pageable", 2.0, **to_device),
        *times("pinned", 8.0, **to_device),
        *w8a8("online", 1.0),
        *w8a8("offline", 4.0),
        *kept(2.5),
        *assembled(1.0),
        *copied(20.0),
        replace(half, case="half", cache=replace(half.cache, resident_before=0.4)),
    ]
    return run_on(
        samples,
        blocks={"read_ahead_kb": 128, "numa_node": 0},
        cpu={"numa_nodes": [{"node": 0}, {"node": 1}]},
        process_limits={"memlock": {"soft": MIB}},
        shared_memory={"total_bytes": 64 * MIB},
    )
