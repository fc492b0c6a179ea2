"""The way `restored`: what the other ways of a phase come to, read back from a snapshot of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from bench.ground.prepare import Prepared
from bench.measuring.channel import Channel
from bench.measuring.child import Stopwatch
from bench.measuring.verify import SHOWN, Reference
from bench.measuring.work import Go, Outcome, perform
from bench.phases.task import Task
from loaders.assembly.restored import restored
from loaders.assembly.values import Options
from loaders.checkpoint.manifest import Checkpoint
from loaders.device.discover import open_device
from loaders.device.identity import identity
from loaders.device.pinned import PinProbe
from loaders.io.sources import Residents

READERS = 4

Named = dict[str, torch.Tensor]


def refuses(ready: Prepared) -> str | None:
    """Why there is nothing to restore; None if there is."""
    if ready.checkpoint.facts is not None:
        return None
    return (
        "no snapshot of that share was made: it can't be of this model, or it is a real one and "
        "readers of it are measured too; name the bench alone, as in "
        "pytest bench/bench_assemble.py --benchmark-only"
    )


def measure(
    channel: Channel,
    task: Task,
    *,
    probe: PinProbe | None = None,
    find_out: Callable[[Named], Mapping[str, Any]] = lambda state: {},
) -> None:
    """One sample, into memory of its own. `find_out` tells more of what was restored."""
    checkpoint, device = task.checkpoint, open_device(task.device)

    def work(go: Go, watch: Stopwatch) -> Outcome:
        options = Options(
            readers=max(READERS, 2 * task.cores),
            open_source=Residents().open,
            probe=probe,
            stamp=watch.stamp,
        )
        go()
        done = restored(checkpoint, device, options)
        names = [spec.name for spec in checkpoint.tensors]
        return Outcome(
            nbytes=checkpoint.tensor_bytes,
            ownership="owned" if device.kind == "cpu" else "device",
            notes=[*done.notes, *device.notes],
            counts=made_counts(checkpoint),
            find_out=lambda: {
                "parameters": len(done.targets),
                "copies": done.copies,
                "copies_are": device.copies_are,
                "ring_bytes": done.ring_bytes,
                "pinned": done.pinned,
                "device": asdict(identity(device)),
                **find_out(dict(zip(names, done.targets, strict=True))),
            },
            prove=lambda: unlike_file(task.reference, names, done.targets),
            kept=done,
        )

    perform(channel, work, Stopwatch(("allocate",), rest="read"))


def made_counts(checkpoint: Checkpoint) -> dict[str, int]:
    """What making the snapshot took: the words on when it pays need it."""
    assert checkpoint.facts is not None
    made_ms = round(1000 * checkpoint.facts["made"]["seconds"])
    return {"made_ms": made_ms, "file_bytes": checkpoint.file_bytes}


def unlike_file(
    expected: Reference, names: Sequence[str], targets: Sequence[torch.Tensor]
) -> list[str]:
    """Tensors that aren't the file's, which was compared with its checksums before the run."""
    faults: list[str] = []
    for name, target in zip(names, targets, strict=True):
        faults += expected.digest_faults(name, target.cpu())
        if len(faults) >= SHOWN:
            break
    return faults
