"""Samples of a tiny checkpoint, taken through the real fork server."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.ground.prepare import Prepared, prepare
from bench.measuring.children import Server
from bench.measuring.deviceread import reader_is_charged
from bench.record.cases import Case
from bench.record.records import CacheRecord, Sample
from bench.run.sampling import Job, take
from bench.synth.write import make_checkpoint
from loaders.system.residency import Residency, choose_method

MIB = 1 << 20
OUTSIDE = Path(__file__).parent / "outside"


def make_tiny(folder: Path, *, size: int = 2 * MIB, file_format: str = "safetensors") -> Path:
    """A made-up checkpoint of a real shape, in two shards."""
    make_checkpoint(
        "llama-3.1-8b",
        folder,
        size=size,
        shards=2,
        format=file_format,
        dtype=None,
        seed=3,
        progress=lambda done, total: None,
    )
    return folder


@dataclass
class Ground:
    """What a test needs to take samples: the checkpoint, and what is known of its storage."""

    work: Path
    ready: Prepared
    residency: Residency
    charged: bool | None
    discarded: list[Sample] = field(default_factory=list)

    @classmethod
    def lay(cls, work: Path, **options: Any) -> Ground:
        ready = prepare(make_tiny(work / "model", **options), work, "tiny")
        largest = max(ready.paths, key=lambda path: path.stat().st_size)
        residency = choose_method(largest)
        return cls(work, ready, residency, reader_is_charged(largest, residency))

    @property
    def payload(self) -> int:
        return self.ready.checkpoint.tensor_bytes

    def job(self, loader: str, *, cache: str = "warm", timeout: float = 60, **options: Any) -> Job:
        args = {
            "loader": loader,
            "options": options,
            "threads": 1,
            "manifest_path": str(self.ready.manifest_path),
            "reference_path": str(self.ready.reference_path),
            "touch_bytes": MIB,
            "cores": 2,
        }
        return self._job(
            "disk_to_host", loader, cache, timeout, "bench.measuring.child:disk_to_host", args
        )

    def ceiling(self, reader: str, *, cache: str = "warm", **options: Any) -> Job:
        files = cache != "none"
        args = {
            "reader": reader,
            "manifest_path": str(self.ready.manifest_path) if files else None,
            "reference_path": str(self.ready.reference_path) if files else None,
            "touch_bytes": MIB,
            "cores": 2,
            "options": options,
        }
        return self._job("ceiling", reader, cache, 60, "bench.measuring.ceilings:measure", args)

    def _job(
        self, phase: str, loader: str, cache: Any, timeout: float, target: str, args: dict[str, Any]
    ) -> Job:
        case = Case(phase=phase, loader=loader, cache=cache, storage="here")
        blank = Sample(
            case=case.case_id(model="tiny", size="2MiB", dtype="bfloat16"),
            phase=phase,
            loader=loader,
            model="tiny",
            size=self.payload,
            dtype="bfloat16",
            pass_number=1,
            status="failed",
            smoke=True,  # the machine that tests may be busy: clocks may be further apart
            cache=CacheRecord(requested=cache),
        )
        return Job(
            case=case,
            blank=blank,
            target=target,
            args=args,
            prepared=self.ready if cache != "none" else None,
            residency=self.residency,
            charged=self.charged,
            timeout=timeout,
        )

    def sample(self, server: Server, job: Job) -> Sample:
        return take(server, job, lambda run: run(), self.discarded.append)


def gone(pid: int) -> bool:
    """Whether a process has ended: there is none, or only its entry waits to be collected."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return status.rpartition(")")[2].split()[0] in "ZX"


def wait_until(true: Callable[[], bool], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
