"""Checkpoint -> device: the stages one by one, and overlapped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bench.ground.prepare import Prepared
from bench.measuring.channel import Channel
from bench.measuring.child import Stopwatch
from bench.measuring.verify import SHOWN, Reference
from bench.measuring.work import Go, Outcome, perform
from bench.phases import parameters
from bench.phases.contract import Asked, Phase
from bench.phases.host_to_device import args
from bench.phases.task import begin
from bench.record.cases import Case
from loaders.device.discover import open_device
from loaders.device.identity import identity
from loaders.device.pinned import PinProbe
from loaders.io.sources import DirectSource
from loaders.pipeline.overlap import Pipelined, PipelineOptions, Stage, run_pipeline

STAGES: Mapping[str, Stage] = {"read-alone": "read", "copy-alone": "copy", "overlapped": "both"}
READERS = 4
BLOCK = 4 << 20


def cases(asked: Asked) -> list[Case]:
    """Whole tensors, cold: each stage alone with the same ring and blocks, and both at once. Then
    the rank's parameters (bench.phases.parameters)."""
    into_parameters = parameters.cases(asked)
    if "cold" not in asked.settings.caches:
        return into_parameters
    return [
        Case(
            phase="assemble",
            loader=way,
            options={"into": "tensors"},
            cache="cold",
            storage=label,
            device=asked.device,
        )
        for label in asked.labels
        for way in STAGES
    ] + into_parameters


def refuses(case: Case, ready: Prepared) -> str | None:
    return parameters.refuses(case, ready) if _into_parameters(case.options) else None


def form(case: Case) -> str | None:
    return parameters.form(case) if _into_parameters(case.options) else None


def memory_bytes(case: Case, ready: Prepared) -> int:
    if _into_parameters(case.options):
        return parameters.memory_bytes(case, ready)
    return ready.checkpoint.tensor_bytes if case.device == "cpu" else 0


def _into_parameters(options: Mapping[str, Any]) -> bool:
    """Or reading for them alone."""
    return options["into"] in {parameters.INTO, parameters.NOWHERE}


def measure(channel: Channel, *, probe: Mapping[str, Any] | None, **given: Any) -> None:
    """One sample: whole tensors, disk -> ring -> device; or parameters."""
    if _into_parameters(given["options"]):
        parameters.measure(channel, probe=probe, **given)
        return
    task = begin(given)
    stage = STAGES[task.way]
    target = open_device(task.device)

    def work(go: Go, watch: Stopwatch) -> Outcome:
        options = PipelineOptions(
            readers=max(READERS, task.cores),
            block_bytes=BLOCK,
            open_source=DirectSource,
            probe=PinProbe(**probe) if probe is not None else None,
            ready=go,
        )
        done = run_pipeline(task.checkpoint, target, options, stage)
        return Outcome(
            nbytes=done.nbytes,
            ownership="borrowed" if stage == "read" else "device",
            notes=[*done.notes, *target.notes],
            find_out=lambda: {**details(done), "device": asdict(identity(target))},
            prove=lambda: wrong(done, task.reference),
            unproved=None if stage == "both" else "one stage alone: no tensors come of it",
            kept=done,
        )

    perform(channel, work, Stopwatch((), rest="transfer" if stage == "copy" else "read"))


def details(done: Pipelined) -> dict[str, Any]:
    return {
        "copies_are": done.copies_are,
        "simulated": done.simulated,
        "copies": done.copies,
        "allocate_seconds": done.allocate,
        "pin_seconds": done.pin,
        "device_seconds": done.device_seconds,
        "ring_bytes": done.ring_bytes,
        "pinned": done.pinned,
        "pinned_got": done.pinned_got,
    }


def wrong(done: Pipelined, expected: Reference) -> list[str]:
    """Tensors on the device whose bytes aren't those of the file."""
    faults: list[str] = []
    for name, tensor in done.tensors:
        faults += expected.digest_faults(name, tensor.cpu())
        if len(faults) >= SHOWN:
            break
    return faults


ASSEMBLE = Phase(
    name="assemble",
    target="bench.phases.assemble:measure",
    cases=cases,
    memory_bytes=memory_bytes,
    usual=lambda case: (
        case.cache == "cold"
        and case.loader in {"stock", "overlapped"}
        and dict(case.options) == {"into": parameters.INTO}
    ),
    refuses=refuses,
    form=form,
    args=args,
)
