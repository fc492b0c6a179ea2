"""Staging: the checkpoint is copied to another storage first; what the copy itself takes."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.ground.prepare import Prepared
from bench.ground.staging import CHUNK, room, stage
from bench.ground.storages import Place, Storage
from bench.measuring.channel import Channel
from bench.measuring.child import Stopwatch, manifest, prepare
from bench.measuring.verify import SHOWN, read_reference
from bench.measuring.work import Go, Outcome, perform
from bench.phases.contract import Phase
from bench.record.cases import Case
from bench.settings import Settings
from loaders.checkpoint.read import open_checkpoint

THREADS = 8
STORE_THREADS = 16


def stage_cases(places: list[Place], caches: tuple[str, ...]) -> list[Case]:
    """One case for each storage that isn't the staged one: copied from there, cold where that can
    be had. None without a staged storage."""
    staged = next(
        (one for one in places if isinstance(one, Storage) and one.staged is not None), None
    )
    if staged is None:
        return []
    return [
        Case(
            phase="stage",
            loader="copy",
            options={"to": staged.label},
            threads=THREADS if isinstance(place, Storage) else STORE_THREADS,
            cache="cold" if isinstance(place, Storage) and "cold" in caches else "none",
            storage=place.label,
        )
        for place in places
        if place is not staged
    ]


def measure(
    channel: Channel,
    *,
    way: str,
    options: Mapping[str, Any],
    threads: int,
    device: str,
    layout: str,
    cores: int,
    touch_bytes: int,
    manifest_path: str,
    reference_path: str,
    into: str,
) -> None:
    """One sample: the whole checkpoint copied to a new folder in `into`, until it is on the device
    where there is one. What was copied is compared, tensor by tensor, and removed."""
    checkpoint = manifest(path=manifest_path)
    prepare(touch_bytes, cores)
    # Named as what is being written, so that it goes with the next run if this one is killed.
    dest = Path(into) / f".staged.incomplete-{os.getpid()}"
    room(Path(into), checkpoint.file_bytes)

    def work(go: Go, watch: Stopwatch) -> Outcome:
        go()
        copied = stage(checkpoint, dest, threads=threads)
        return Outcome(
            nbytes=checkpoint.tensor_bytes,
            ownership="storage",
            counts=copied.counts,
            find_out=lambda: {"file_bytes": copied.nbytes, "files": len(checkpoint.files)},
            prove=lambda: _differing(dest, reference_path),
        )

    try:
        perform(channel, work, Stopwatch((), rest="read"))
    finally:
        shutil.rmtree(dest, ignore_errors=True)


def _differing(copy: Path, reference_path: str) -> list[str]:
    """The tensors of the copy that don't hold what the reference says."""
    expected = pickle.loads(Path(reference_path).read_bytes()).digests
    found = read_reference(open_checkpoint(copy)).digests
    wrong = [name for name, digest in expected.items() if found.get(name) != digest]
    return [f"{name}: the staged copy holds other bytes" for name in wrong[:SHOWN]]


def memory_bytes(case: Case, ready: Prepared) -> int:
    """One block a thread; what lies in shared memory was looked at before the run."""
    return (case.threads or THREADS) * CHUNK


def args(case: Case, settings: Settings) -> dict[str, Any]:
    assert settings.stage is not None
    return {"into": str(Path(settings.stage).resolve() / ".coldload")}


STAGE = Phase(
    name="stage",
    target="bench.phases.stage:measure",
    cases=lambda asked: [],  # they need the storages themselves: see stage_cases
    memory_bytes=memory_bytes,
    args=args,
)
