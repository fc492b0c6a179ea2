"""Layout: int8 weights as checkpoints store them -> what a device multiplies with.

`transpose` and `nz` are Ascend's, `view` is CUDA's: nothing is moved, so its sample has no bytes
and no rate, but the time that making the views took. Off an NPU the blocks are made by torch's
copies, and the way is called so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from bench.ground.prepare import Prepared
from bench.measuring.channel import Channel
from bench.measuring.child import Stopwatch
from bench.measuring.work import Go, Outcome, no_faults, perform
from bench.phases.contract import Asked, Phase
from bench.phases.quantising import no_weights, resident, weights_of
from bench.phases.task import begin
from bench.phases.tensors import differing
from bench.record.cases import Case
from loaders.device.discover import open_device
from loaders.device.identity import identity
from loaders.device.interface import Device
from loaders.quantise.fast import Quantiser, allocate
from loaders.quantise.layout import Name, from_nz, laid_out, layouts, out_shape
from loaders.quantise.schemes import scheme

Weights = Mapping[str, torch.Tensor]
PLAIN_NZ = "nz-plain-torch"
_LAYOUTS: Mapping[str, Name] = {
    "transpose": "transpose",
    "nz": "nz",
    PLAIN_NZ: "nz",
    "view": "view",
}


def cases(asked: Asked) -> list[Case]:
    """Each layout, and a bare copy of as many bytes."""
    blocks = "nz" if asked.device.startswith("npu") else PLAIN_NZ
    return [
        Case(phase="layout", loader=way, device=asked.device)
        for way in ("copy", "transpose", blocks, "view")
    ]


def refuses(case: Case, ready: Prepared) -> str | None:
    return no_weights(ready.checkpoint)


def memory_bytes(case: Case, ready: Prepared) -> int:
    return 3 * sum(spec.nbytes for spec in weights_of(ready.checkpoint))


def measure(channel: Channel, **given: Any) -> None:
    """One sample of a layout."""
    task = begin(given)
    device = open_device(task.device)
    lay_out(
        channel,
        task.way,
        int8_weights(resident(task.checkpoint, torch.device("cpu")), device),
        device,
    )


def int8_weights(weights: Weights, device: Device) -> dict[str, torch.Tensor]:
    """The weights' int8 values on the device; their scales aren't laid out by anybody."""
    chosen, found = scheme("int8-channel"), {}
    for name, weight in weights.items():
        out = allocate(tuple(weight.shape), weight.dtype, chosen)
        Quantiser(chosen, weight.dtype, compiled=False)(weight, out, name=name)
        found[name] = out.values.to(device.torch_device)
    return found


def lay_out(channel: Channel, way: str, weights: Weights, device: Device) -> None:
    """The clock runs from the first weight until the device was synchronised after the last."""
    layout = _LAYOUTS.get(way)
    own = way == "nz" and device.kind == "npu"  # the cast makes its own memory
    shapes = {
        name: out_shape(tuple(one.shape), layout) if layout else tuple(one.shape)
        for name, one in weights.items()
    }
    into: dict[str, torch.Tensor] = {}
    if way != "view" and not own:
        into = {
            name: torch.zeros(shape, dtype=torch.int8, device=device.torch_device)
            for name, shape in shapes.items()
        }
    done: dict[str, torch.Tensor] = {}

    def work(go: Go, watch: Stopwatch) -> Outcome:
        go()
        for name, one in weights.items():
            if layout is None:
                into[name].copy_(one)
            else:
                done[name] = laid_out(one, layout, into.get(name))
        device.synchronize()
        return Outcome(
            nbytes=0 if way == "view" else sum(one.nbytes for one in weights.values()),
            ownership="owned" if device.kind == "cpu" else "device",
            find_out=lambda: {
                "device": asdict(identity(device)),
                "tensors": len(weights),
                "source_bytes": sum(one.nbytes for one in weights.values()),
                "how": how(layout, device),
            },
            prove=(lambda: wrong(weights, done, layout)) if layout else no_faults,
            unproved=None if layout else "a bare copy: no layout comes of it",
        )

    perform(channel, work, Stopwatch((), rest="layout"))


def how(layout: Name | None, device: Device) -> str:
    found = {one.name: one.how for one in layouts(npu=device.kind == "npu")}
    return found[layout] if layout else "torch copy"


def wrong(weights: Weights, done: Weights, layout: Name) -> list[str]:
    """Weights that aren't the transpose that they should be, once the layout is undone."""
    found = {}
    for name, one in done.items():
        back = one.cpu()
        if layout == "nz" and back.ndim == 4:
            back = from_nz(back, tuple(reversed(weights[name].shape)))
        found[name] = back
    expected = {name: one.cpu().t() for name, one in weights.items()}
    faults = differing(found.items(), expected)
    if layout == "view":
        moved = [name for name, one in done.items() if one.data_ptr() != weights[name].data_ptr()]
        faults += [f"{name}: not a view" for name in moved]
    return faults[:5]


LAYOUT = Phase(
    name="layout",
    target="bench.phases.layout:measure",
    cases=cases,
    memory_bytes=memory_bytes,
    usual=lambda case: False,
    refuses=refuses,
)
