"""Checkpoint -> this rank's parameters on the device: as the engine does it, and for each loader
reading alone, one stage after the other, and overlapped."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bench.ground.kept_state import RESTORED, form_of
from bench.ground.prepare import Prepared
from bench.measuring.channel import Channel
from bench.measuring.child import Stopwatch
from bench.measuring.verify import SHOWN
from bench.measuring.work import Go, Outcome, no_faults, perform
from bench.phases import restored
from bench.phases.contract import Asked
from bench.phases.slicing import degrees_of, layout_of, wrong
from bench.phases.task import begin
from bench.record.cases import Case
from bench.settings import LoaderChoice, Settings, parse_loader
from loaders import registry
from loaders.assembly.alongside import alongside
from loaders.assembly.overlapped import overlapped
from loaders.assembly.staged import read_alone, staged
from loaders.assembly.stock import stock
from loaders.assembly.values import Assembled, Options
from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.text import listed, shown
from loaders.contract import Loader
from loaders.device.discover import open_device
from loaders.device.identity import identity
from loaders.device.interface import Device
from loaders.device.pinned import PinProbe
from loaders.io.sources import Residents, summed
from loaders.slicing.build import plan_rank
from loaders.slicing.draft import draft_of
from loaders.slicing.errors import PlanError
from loaders.slicing.model import model_of
from loaders.slicing.plan import Parameter
from loaders.slicing.sliced_read import read_only
from loaders.slicing.whole import whole

INTO = "parameters"
NOWHERE = "nowhere"
"""What reading alone is read into: nothing is made of it."""

STAGED = ("safetensors-mmap", "parallel", "direct")
"""Loaders that are measured unless others are named or --full asks for all: one for each kind of
memory."""

DRAFT = "draft"
"""The part of a checkpoint that is a model of its own, loaded beside the main one."""

READERS = 4
BLOCK = 4 << 20


def cases(asked: Asked) -> list[Case]:
    """Every way, in each cache state, for the share of a rank that was asked for, or for all; then
    the draft model, by the engine's way and ours."""
    settings = asked.settings
    layout = layout_of(settings) if settings.tp_given else "tp1"
    own: list[tuple[str, dict[str, Any]]] = [
        ("stock", {"into": INTO}),
        ("read-alone", {"into": NOWHERE}),
        ("overlapped", {"into": INTO}),
        (RESTORED, {"into": INTO}),
    ]
    by_loader = [
        (way, {"into": NOWHERE if way == "read-alone" else INTO, "by": name})
        for name in by_names(settings)
        for way in ("read-alone", "staged", "overlapped")
    ]
    drafts = [(way, {"into": INTO, "part": DRAFT}) for way in ("stock", "overlapped")]
    return [
        Case(
            phase="assemble",
            loader=way,
            options=options,
            cache=cache,
            storage=label,
            device=asked.device,
            layout=layout,
        )
        for label in asked.labels
        for cache in settings.caches
        if cache in {"cold", "warm"}
        for way, options in (*own, *by_loader, *drafts)
    ]


def by_names(settings: Settings) -> list[str]:
    """The loaders that are measured, as `name` or `name:option=value,...`: those that were named,
    or else those whose tensors are a safetensors checkpoint's, in the host's memory."""
    if settings.loaders:
        return list(dict.fromkeys(text_of(choice) for choice in settings.loaders))
    return [
        name
        for name, entry in registry.entries().items()
        if (settings.full or name in STAGED)
        and entry.cls is not None
        and "safetensors" in entry.cls.formats
        and entry.cls.place == "file"
        and not entry.cls.synthetic
        and registry.unavailable(entry) is None
    ]


def text_of(choice: LoaderChoice) -> str:
    if not choice.options:
        return choice.name
    given = (
        f"{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in choice.options.items()
    )
    return f"{choice.name}:{','.join(given)}"


def made(text: str, threads: int) -> Loader:
    """The loader that `text_of` made this text of."""
    choice = parse_loader(text)
    return registry.get(choice.name)(threads=threads, **(choice.options or {}))


def planned(checkpoint: Checkpoint, layout: str, part: str | None = None) -> list[Parameter]:
    """What the middle rank keeps, of the main model or of the draft. PlanError."""
    degrees = degrees_of(layout)
    model = draft_of(checkpoint) if part == DRAFT else model_of(checkpoint)
    if model is None:
        raise PlanError(
            "there is no draft model in this checkpoint (layers for multi-token prediction, behind "
            "those of num_hidden_layers)"
        )
    return list(plan_rank(model, degrees, degrees.tp // 2).parameters)


def form(case: Case) -> str | None:
    return form_of(case) if case.loader == RESTORED else None


def refuses(case: Case, ready: Prepared) -> str | None:
    if case.loader == RESTORED:
        return restored.refuses(ready)
    if "safetensors" not in ready.checkpoint.format:
        return f"parameters are assembled from safetensors, these are {ready.checkpoint.format}"
    try:
        planned(ready.checkpoint, case.layout, case.options.get("part"))
    except PlanError as error:
        return str(error)
    return _refused_by(str(case.options["by"]), ready) if "by" in case.options else None


def _refused_by(text: str, ready: Prepared) -> str | None:
    entry = registry.entries()[parse_loader(text).name]
    reason = registry.unavailable(entry)
    if reason is not None or entry.cls is None:
        return reason or f"{entry.name} isn't there"
    if "safetensors" not in entry.cls.formats or entry.cls.place != "file" or entry.cls.synthetic:
        return f"{entry.name} doesn't read safetensors files of this host: nothing to assemble"
    return made(text, 1).refuses(ready.checkpoint)


def memory_bytes(case: Case, ready: Prepared) -> int:
    """Parameters in host memory, and where a loader keeps its tensors, those."""
    if case.loader == RESTORED:
        return ready.checkpoint.tensor_bytes if case.device == "cpu" else 0
    parameters = planned(ready.checkpoint, case.layout, case.options.get("part"))
    by = case.options.get("by")
    host = 0
    if case.options["into"] == INTO and (case.device == "cpu" or by is not None):
        host = sum(one.nbytes for one in parameters)
    return host + (made(str(by), 1).memory_bytes(ready.checkpoint) if by is not None else 0)


def measure(channel: Channel, *, probe: Mapping[str, Any] | None, **given: Any) -> None:
    """One sample. The stamps of a staged way add up to its whole; the others have no stages to tell
    apart, and all but getting memory stands as reading."""
    task = begin(given)
    if task.way == RESTORED:
        found = PinProbe(**probe) if probe is not None else None
        restored.measure(channel, task, probe=found)
        return
    device = open_device(task.device)
    checkpoint = task.checkpoint
    parameters = planned(checkpoint, task.layout, task.options.get("part"))
    by = task.options.get("by")
    loader = None if by is None else made(str(by), task.cores)
    for module in loader.requires if loader is not None else ():
        importlib.import_module(module)

    alone = task.options["into"] == NOWHERE
    nbytes = sum(one.nbytes for one in parameters)
    memory = "owned" if device.kind == "cpu" else "device"
    if alone:
        memory = "borrowed" if loader is None else loader.ownership
        nbytes = nbytes if loader is None else checkpoint.tensor_bytes
    lacks = [] if alone else not_whole(checkpoint)

    def work(go: Go, watch: Stopwatch) -> Outcome:
        options = Options(
            readers=max(READERS, 2 * task.cores),
            block_bytes=BLOCK,
            open_source=Residents().open,
            probe=PinProbe(**probe) if probe is not None else None,
            stamp=watch.stamp,
        )
        go()
        done = _done(task.way, loader, checkpoint, parameters, device, options)
        return Outcome(
            nbytes=nbytes,
            ownership=memory,
            notes=[*done.notes, *device.notes, *lacks],
            find_out=lambda: details(done, parameters, device),
            prove=no_faults if alone else lambda: faults_of(checkpoint, parameters, done),
            unproved="reading alone: no parameters come of it" if alone else None,
            kept=done,
        )

    stages = ("allocate", "slice", "transfer") if task.way == "staged" else ("allocate",)
    perform(channel, work, Stopwatch(stages, rest="read"))


def _done(
    way: str,
    loader: Loader | None,
    checkpoint: Checkpoint,
    parameters: list[Parameter],
    device: Device,
    options: Options,
) -> Assembled:
    if loader is not None:
        if way == "read-alone":
            return read_alone(loader, checkpoint)
        act = {"staged": staged, "overlapped": alongside}[way]
        return act(loader, checkpoint, parameters, device, options)
    if way == "read-alone":
        told = read_only(
            checkpoint,
            parameters,
            threads=options.readers,
            block_bytes=options.block_bytes,
            open_source=options.open_source,
        )
        return Assembled(targets=[], notes=tuple(summed(told)))
    return {"stock": stock, "overlapped": overlapped}[way](checkpoint, parameters, device, options)


def not_whole(checkpoint: Checkpoint) -> list[str]:
    """What the model lacks of parameters and has too much of tensors, the first few by name."""
    found = whole(model_of(checkpoint), checkpoint)
    notes = [
        f"unfilled: {shown(one.parameter)} lacks {one.lacks}" for one in found.unfilled[:SHOWN]
    ]
    if len(found.unfilled) > SHOWN:
        notes.append(f"and {len(found.unfilled) - SHOWN} more unfilled parameters")
    if found.surplus:
        names = listed([shown(name) for name in found.surplus], SHOWN)
        notes.append(f"no parameter takes {names}: {next(iter(found.surplus.values()))}")
    return notes


def details(done: Assembled, parameters: list[Parameter], device: Device) -> dict[str, Any]:
    return {
        "parameters": len(parameters),
        "copies": done.copies,
        "copies_are": device.copies_are,
        "ring_bytes": done.ring_bytes,
        "pinned": done.pinned,
        "device": asdict(identity(device)),
    }


def faults_of(checkpoint: Checkpoint, parameters: list[Parameter], done: Assembled) -> list[str]:
    """Parameters that aren't what narrow and copy make of the files, read once more; one after the
    other, because a device may hold more than the host."""
    faults: list[str] = []
    for parameter, target in zip(parameters, done.targets, strict=True):
        faults += wrong(checkpoint, [parameter], [target.cpu()])
        if len(faults) >= SHOWN:
            break
    return faults
