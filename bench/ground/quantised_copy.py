"""The checkpoint that w8a8's `offline` way reads: made once, kept on the storage, not timed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from bench.ground.prepare import prepare
from bench.ground.ready import Ground
from bench.progress import Say, percents
from bench.quantize.plan import PlanError, plan
from bench.quantize.write import WriteError, write_quantised
from bench.record.cases import Case
from loaders.io.errors import LoadError
from loaders.quantise.faults import QuantiseError

FORM = "int8"
SCHEME = "int8-channel"


class Means(Protocol):
    """What of the run's means is needed: bench.ground.groundwork.Means."""

    @property
    def cases(self) -> Sequence[Case]: ...
    @property
    def work(self) -> Path: ...
    @property
    def say(self) -> Say: ...


def lay_quantised(label: str, dest: Path, means: Means, ground: Ground, *, real: bool) -> None:
    """Makes the copy `dest` of what lies on the storage `label`, if the run's cases need it and
    it isn't there, and adds it to the ground. What can't be quantised or written is noted."""
    if not wanted(means.cases, label, real=real):
        return
    source = ground.prepared[label, ground.main].checkpoint
    try:
        planned = plan(source, format="compressed-tensors", scheme_name=SCHEME)
    except PlanError:
        return  # the bench says why
    try:
        if not dest.exists():
            progress = percents(means.say, f"quantising, on {label}")
            # Compiling takes longer than a checkpoint of a few GiB without it.
            write_quantised(source, planned, dest, progress=progress, compiled=False)
    except (WriteError, LoadError, QuantiseError) as error:
        ground.notes.append(f"no quantised copy for w8a8: {error}")
        return
    ground.prepared[label, FORM] = prepare(dest, means.work, f"{label}-{FORM}", "safetensors")


def wanted(cases: Sequence[Case], label: str, *, real: bool) -> bool:
    """Whether the run needs one on that storage. Of a real model, which may be large, only where
    readers of the model aren't measured too: where somebody named these benches."""
    if real and any(case.phase == "disk_to_host" for case in cases):
        return False
    return any(
        case.phase == "w8a8" and case.loader == "offline" and case.storage == label
        for case in cases
    )
