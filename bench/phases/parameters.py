"""Checkpoint -> this rank's parameters on the device: as the engine does it, one stage after the
other for some loaders, and overlapped."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bench.ground.prepare import Prepared
from bench.measuring.channel import Channel
from bench.measuring.child import Stopwatch
from bench.measuring.verify import SHOWN
from bench.measuring.work import Go, Outcome, perform
from bench.phases.contract import Asked
from bench.phases.slicing import layout_of, planned, wrong
from bench.phases.task import begin
from bench.record.cases import Case
from loaders import registry
from loaders.assembly.overlapped import overlapped
from loaders.assembly.staged import staged
from loaders.assembly.stock import stock
from loaders.assembly.values import Assembled, Options
from loaders.device.discover import open_device
from loaders.device.identity import identity
from loaders.device.interface import Device
from loaders.device.pinned import PinProbe
from loaders.io.sources import Residents
from loaders.slicing.errors import PlanError
from loaders.slicing.plan import Parameter

INTO = "parameters"
STAGED = ("safetensors-mmap", "parallel", "direct")
"""Loaders that are staged unless --full asks for all: one for each kind of memory."""

READERS = 4
BLOCK = 4 << 20


def cases(asked: Asked) -> list[Case]:
    """Every way, in each cache state, for the share of a rank that was asked for, or for all."""
    settings = asked.settings
    layout = layout_of(settings) if settings.tp_given else "tp1"
    ways: list[tuple[str, dict[str, Any]]] = [("stock", {}), ("overlapped", {})]
    ways += [("staged", {"by": name}) for name in _staged(settings.full)]
    return [
        Case(
            phase="assemble",
            loader=way,
            options={"into": INTO, **options},
            cache=cache,
            storage=label,
            device=asked.device,
            layout=layout,
        )
        for label in asked.labels
        for cache in settings.caches
        if cache in {"cold", "warm"}
        for way, options in ways
    ]


def _staged(full: bool) -> list[str]:
    """Those whose tensors are a safetensors checkpoint's, in the host's memory."""
    entries = registry.entries()
    return [
        name
        for name, entry in entries.items()
        if (full or name in STAGED)
        and entry.cls is not None
        and "safetensors" in entry.cls.formats
        and entry.cls.place == "file"
        and not entry.cls.synthetic
        and registry.unavailable(entry) is None
    ]


def refuses(case: Case, ready: Prepared) -> str | None:
    if "safetensors" not in ready.checkpoint.format:
        return f"parameters are assembled from safetensors, these are {ready.checkpoint.format}"
    try:
        planned(ready.checkpoint, case.layout)
    except PlanError as error:
        return str(error)
    if "by" in case.options:
        return registry.get(str(case.options["by"]))().refuses(ready.checkpoint)
    return None


def memory_bytes(case: Case, ready: Prepared) -> int:
    """Parameters in host memory, and where a loader keeps its tensors, those."""
    kept = sum(one.nbytes for one in planned(ready.checkpoint, case.layout))
    host = kept if case.device == "cpu" or case.loader == "staged" else 0
    if "by" in case.options:
        host += registry.get(str(case.options["by"]))().memory_bytes(ready.checkpoint)
    return host


def measure(channel: Channel, *, probe: Mapping[str, Any] | None, **given: Any) -> None:
    """One sample. The stamps of a staged way add up to its whole; the others have no stages to tell
    apart, and all but getting memory stands as reading."""
    task = begin(given)
    device = open_device(task.device)
    checkpoint = task.checkpoint
    parameters = planned(checkpoint, task.layout)
    name = task.options.get("by")
    loader = None
    if name is not None:
        cls = registry.get(str(name))
        for module in cls.requires:
            importlib.import_module(module)
        loader = cls(threads=task.cores)

    def work(go: Go, watch: Stopwatch) -> Outcome:
        options = Options(
            readers=max(READERS, 2 * task.cores),
            block_bytes=BLOCK,
            open_source=Residents().open,
            probe=PinProbe(**probe) if probe is not None else None,
            stamp=watch.stamp,
        )
        go()
        if loader is not None:
            done = staged(loader, checkpoint, parameters, device, options)
        else:
            way = {"stock": stock, "overlapped": overlapped}[task.way]
            done = way(checkpoint, parameters, device, options)
        return Outcome(
            nbytes=sum(one.nbytes for one in parameters),
            ownership="owned" if device.kind == "cpu" else "device",
            notes=[*done.notes, *device.notes],
            find_out=lambda: details(done, parameters, device),
            prove=lambda: faults_of(task.checkpoint, parameters, done),
            kept=done,
        )

    stages = ("allocate", "slice", "transfer") if loader is not None else ("allocate",)
    perform(channel, work, Stopwatch(stages, rest="read"))


def details(done: Assembled, parameters: list[Parameter], device: Device) -> dict[str, Any]:
    return {
        "parameters": len(parameters),
        "copies": done.copies,
        "copies_are": device.copies_are,
        "ring_bytes": done.ring_bytes,
        "pinned": done.pinned,
        "device": asdict(identity(device)),
    }


def faults_of(checkpoint: Any, parameters: list[Parameter], done: Assembled) -> list[str]:
    """Parameters that aren't what narrow and copy make of the files, read once more; one after the
    other, because a device may hold more than the host."""
    faults: list[str] = []
    for parameter, target in zip(parameters, done.targets, strict=True):
        faults += wrong(checkpoint, [parameter], [target.cpu()])
        if len(faults) >= SHOWN:
            break
    return faults
