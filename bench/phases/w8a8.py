"""A checkpoint -> a rank's int8 weights in place, two ways, stage after stage.

`online`: bf16 -> read -> slice -> quantise -> layout. `offline`: the same checkpoint, quantised
before the run (`coldload quantize`, kept on the storage, not timed) -> read -> slice -> layout.
Both come to the same bytes: the online way is proved against the definition, the offline one
against plain cuts of its files, and both record a digest of all they came to, which must be one.

Stages follow each other, so that each has its own seconds; a loader that overlaps them can hide the
smaller ones behind the largest, no more. What is no stage's (planning files, handing out work) is
`open`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
import xxhash

from bench.ground.kept_state import PLAIN, RESTORED, form_of
from bench.ground.prepare import Prepared
from bench.ground.quantised_copy import FORM, SCHEME
from bench.measuring.channel import Channel
from bench.measuring.child import Stopwatch
from bench.measuring.consume import feed
from bench.measuring.work import Go, Outcome, perform
from bench.phases import restored
from bench.phases.contract import Asked, Phase
from bench.phases.layout import how
from bench.phases.quantising import compiling, no_weights, quantised_names, quantisers
from bench.phases.slicing import READERS, layout_of, planned
from bench.phases.task import Task, begin
from bench.phases.w8a8_proof import unlike_cuts, unlike_definition
from bench.record.cases import Case
from loaders.checkpoint.dtypes import torch_dtype
from loaders.checkpoint.manifest import Checkpoint
from loaders.device.discover import open_device
from loaders.device.identity import identity
from loaders.io.sources import summed
from loaders.quantise.layout import Name
from loaders.quantise.schemes import scheme
from loaders.slicing.errors import PlanError
from loaders.slicing.plan import Parameter
from loaders.w8a8.plan import Shares, is_quantised, needed, shares_of
from loaders.w8a8.ways import Loaded, State, Way, offline, online
from loaders.w8a8.windows import WINDOW

WAYS = ("online", "offline")
"""Those that assemble; a snapshot of what they come to is a third."""

STAGES = ("allocate", "read", "slice", "quantise", "layout")
LAYOUTS: tuple[Name, ...] = ("nz", "transpose", "view")


def cases(asked: Asked) -> list[Case]:
    """Every way on each folder, cold and warm, into the layout of the device (on the host that of
    an NPU, by torch's copies); into every layout with --full."""
    usual: Name = "view" if asked.device.startswith("cuda") else "nz"
    layouts = LAYOUTS if asked.settings.full else (usual,)
    return [
        Case(
            phase="w8a8",
            loader=way,
            options={"into": layout},
            cache=cache,
            storage=label,
            device=asked.device,
            layout=layout_of(asked.settings),
        )
        for label in asked.labels
        for cache in asked.settings.caches
        for layout in layouts
        for way in (*WAYS, RESTORED)
    ]


def form(case: Case) -> str | None:
    if case.loader == RESTORED:
        return form_of(case)
    return FORM if case.loader == "offline" else None


def refuses(case: Case, ready: Prepared) -> str | None:
    checkpoint = ready.checkpoint
    if case.loader == RESTORED:
        if case.device.startswith("npu") and case.options["into"] == "nz":
            return "what torch_npu's cast makes is no run of bytes that could be copied back"
        return restored.refuses(ready)
    try:
        parameters = planned(checkpoint, case.layout)
        if case.loader == "online":
            reason = no_weights(checkpoint)
            if reason is not None:
                return reason
            shares(checkpoint, parameters)
        elif not any(map(is_quantised, parameters)):
            return no_weights(checkpoint) or (
                "no quantised copy of a real model is made unless these benches are named: "
                "pytest bench/bench_w8a8.py --benchmark-only"
            )
    except PlanError as error:
        return str(error)
    stacked = any(len(one.shape) > 2 for one in parameters)
    if stacked and case.device.startswith("npu") and case.options["into"] == "nz":
        return "torch_npu's cast of stacked experts isn't known here; --full has other layouts"
    return None


def shares(checkpoint: Checkpoint, parameters: list[Parameter]) -> Shares:
    specs = {spec.name: spec for spec in checkpoint.tensors}
    return shares_of(parameters, specs, quantised_names(checkpoint))


def memory_bytes(case: Case, ready: Prepared) -> int:
    """What a rank keeps, again where it is laid out, and a window."""
    if case.loader == RESTORED:
        return ready.checkpoint.tensor_bytes
    kept = sum(one.nbytes for one in planned(ready.checkpoint, case.layout))
    return 2 * kept + WINDOW


def measure(channel: Channel, **given: Any) -> None:
    """One sample of either way."""
    task = begin(given)
    if task.way == RESTORED:
        into = str(task.options["into"])
        restored.measure(
            channel, task, find_out=lambda named: {"state_digest": digest_of(_viewed(named, into))}
        )
        return
    assemble(channel, task, planned(task.checkpoint, task.layout))


def assemble(channel: Channel, task: Task, parameters: list[Parameter]) -> None:
    """The clock runs from opening the first file until the last weight lies in its layout."""
    checkpoint, device = task.checkpoint, open_device(task.device)
    way = Way(
        device=device,
        layout=task.options["into"],
        cores=task.cores,
        readers=max(READERS, 2 * task.cores),
    )
    details: dict[str, Any] = {
        "device": asdict(identity(device)),
        "how": how(way.layout, device),
        "tensor_bytes": checkpoint.tensor_bytes,
    }
    specs = {spec.name: spec for spec in checkpoint.tensors}
    details["needed"] = asdict(needed(parameters, specs))
    stages: tuple[str, ...] = STAGES if device.kind == "cpu" else (*STAGES, "transfer")
    load: Callable[[Stopwatch], Loaded]
    prove: Callable[[State], list[str]]
    if task.way == "online":
        chosen, mine = scheme(SCHEME), shares(checkpoint, parameters)
        dtypes = [torch_dtype(one.dtype) for one in (*mine.by_rows, *mine.within_rows)]
        made = quantisers(dtypes, chosen, device.torch_device)
        details |= {"scheme": SCHEME, **compiling(made)}

        def load(watch: Stopwatch) -> Loaded:
            return online(checkpoint, mine, made, way, watch.stamp)

        def prove(state: State) -> list[str]:
            return unlike_definition(checkpoint, mine, state, chosen, way)

    else:
        stages = tuple(name for name in stages if name != "quantise")

        def load(watch: Stopwatch) -> Loaded:
            return offline(checkpoint, parameters, way, watch.stamp)

        def prove(state: State) -> list[str]:
            return unlike_cuts(checkpoint, parameters, state, way)

    def work(go: Go, watch: Stopwatch) -> Outcome:
        go()
        done = load(watch)
        return Outcome(
            nbytes=sum(one.nbytes for one in done.state.values()),
            ownership="owned" if device.kind == "cpu" else "device",
            notes=summed(done.notes),
            find_out=lambda: {
                **details,
                "fetched_bytes": done.fetched,
                "state_digest": digest_of(done.state),
            },
            prove=lambda: prove(done.state),
            kept=done,
        )

    perform(channel, work, Stopwatch(stages, rest="open"))


def _viewed(state: State, into: str) -> State:
    """int8 weights that lie [out, in], seen as the layout `view` has them."""
    turn = into == PLAIN
    return {
        name: one.mT if turn and one.dtype == torch.int8 and one.ndim > 1 else one
        for name, one in state.items()
    }


def digest_of(state: State) -> str:
    """128 bits over names, dtypes, shapes and bytes of all parameters, in the order of names."""
    hasher = xxhash.xxh3_128()
    for name in sorted(state):
        tensor = state[name].cpu()
        hasher.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        # the bytes of a transposed view are taken as they lie: transposing them takes seconds
        feed(hasher, tensor if tensor.is_contiguous() else tensor.mT)
    return hasher.hexdigest()


W8A8 = Phase(
    name="w8a8",
    target="bench.phases.w8a8:measure",
    cases=cases,
    memory_bytes=memory_bytes,
    usual=lambda case: False,  # its int8 checkpoint has to be made first
    refuses=refuses,
    form=form,
    preload="bench.phases.quantising:preload_compiler",
)
