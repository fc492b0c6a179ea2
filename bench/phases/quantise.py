"""Quantising: bf16 or fp16 weights in memory -> int8 or fp8 with scales, into memory that is there.

A sample's bytes are those of the weights that were quantised, so that rates are of a checkpoint.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from math import sqrt
from typing import Any

import torch

from bench.ground.prepare import Prepared
from bench.measuring.channel import Channel
from bench.measuring.child import Stopwatch
from bench.measuring.consume import byte_sum
from bench.measuring.work import Go, Outcome, no_faults, perform
from bench.phases.contract import Asked, Phase
from bench.phases.quantising import (
    compiling,
    no_weights,
    outputs,
    quantisers,
    resident,
    weights_of,
)
from bench.phases.task import begin
from bench.phases.tensors import differing
from bench.record.cases import Case
from loaders.device.discover import open_device
from loaders.device.identity import identity
from loaders.device.interface import Device
from loaders.quantise import reference
from loaders.quantise.errors import loss
from loaders.quantise.fast import Output
from loaders.quantise.schemes import SCHEMES, Scheme, scheme

DEFAULT = ("int8-channel", "int8-channel-127", "fp8-channel")
NF4 = "nf4"
"""Not one of ours: bitsandbytes' 4 bits, which has nothing to be compared with but its floor."""

BNB = "bitsandbytes"
BNB_INT8 = "int8-channel-127"
"""The scheme whose formula LLM.int8 has (on values rounded to float16)."""

BLOCKS = "fast-not-compiled"
Weights = Mapping[str, torch.Tensor]
Outputs = Mapping[str, Output]


def cases(asked: Asked) -> list[Case]:
    """Each scheme by definition, fast, and the floor; all schemes with --full, and the fast one as
    it is without a compiler."""
    full = asked.settings.full
    ways = {name: ["reference", "fast", "floor"] for name in (SCHEMES if full else DEFAULT)}
    if full:
        for found in ways.values():
            found.append(BLOCKS)
    ways[BNB_INT8].append(BNB)
    ways[NF4] = [BNB, "floor"]
    return [
        Case(phase="quantise", loader=way, options={"scheme": name}, device=asked.device)
        for name, found in ways.items()
        for way in found
    ]


def refuses(case: Case, ready: Prepared) -> str | None:
    for_it = case.loader == BNB or case.options["scheme"] == NF4
    if for_it and importlib.util.find_spec(BNB) is None:
        return "needs bitsandbytes: pip install bitsandbytes"
    return no_weights(ready.checkpoint)


def memory_bytes(case: Case, ready: Prepared) -> int:
    """Weights, values, and the temporaries of the plain way, as large as the largest weight."""
    chosen = weights_of(ready.checkpoint)
    total = sum(spec.nbytes for spec in chosen)
    return 2 * total + 6 * max(spec.nbytes for spec in chosen)


def measure(channel: Channel, **given: Any) -> None:
    """One sample of quantising."""
    task = begin(given)
    device = open_device(task.device)
    weights = resident(task.checkpoint, device.torch_device)
    if task.options["scheme"] == NF4:
        nf4(channel, task.way, weights, device)
    else:
        quantise(channel, task.way, weights, scheme(task.options["scheme"]), device)


def quantise(channel: Channel, way: str, weights: Weights, chosen: Scheme, device: Device) -> None:
    """The clock runs from the first weight until the device was synchronised after the last."""
    outs = outputs(weights, chosen)
    details: dict[str, Any] = {"device": asdict(identity(device)), "tensors": len(weights)}
    act: Callable[[], None]
    if way in ("fast", BLOCKS):
        dtypes = [one.dtype for one in weights.values()]
        made = quantisers(dtypes, chosen, device.torch_device, compiled=way == "fast")
        details |= compiling(made)

        def act() -> None:
            for name, weight in weights.items():
                made[weight.dtype](weight, outs[name], name=name)

    elif way == "reference":
        act = partial(by_definition, weights, outs, chosen)
    elif way == BNB:
        importlib.import_module(BNB)
        act = partial(llm_int8, weights, outs)
    else:
        act = partial(floor, [(w, outs[n].values) for n, w in weights.items()])

    def find_out() -> dict[str, Any]:
        return details if way == "floor" else {**details, "quality": quality(weights, outs)}

    def work(go: Go, watch: Stopwatch) -> Outcome:
        go()
        act()
        device.synchronize()
        return Outcome(
            nbytes=sum(one.nbytes for one in weights.values()),
            ownership="owned" if device.kind == "cpu" else "device",
            find_out=lambda: (
                details | ({} if way == "floor" else {"quality": quality(weights, outs)})
            ),
            prove=partial(unlike, weights, outs, chosen) if way in ("fast", BLOCKS) else no_faults,
            unproved=_UNPROVED.get(way),
        )

    perform(channel, work, Stopwatch((), rest="quantise"))


_UNPROVED = {
    "reference": "the definition itself: the others are compared with it",
    "floor": "bytes are read and written: no values come of it",
    BNB: "a formula of its own on float16: only its error is shown",
}


def by_definition(weights: Weights, outs: Outputs, chosen: Scheme) -> None:
    for name, weight in weights.items():
        done = reference.quantise(weight, chosen, name=name)
        outs[name].values.copy_(done.values)
        outs[name].scale.copy_(done.scale)


def floor(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Each input byte read once, each output byte written once, by all cores: as many bytes as the
    output has are copied, the rest of the input is summed. No quantiser can do with less."""
    for weight, values in pairs:
        source = weight.reshape(-1).view(torch.uint8)
        target = values.reshape(-1).view(torch.uint8)
        size = min(len(source), len(target))
        target[:size].copy_(source[:size])
        rest = source[size:]
        if rest.device.type == "cpu":
            byte_sum(rest)
        else:
            rest[: len(rest) // 8 * 8].view(torch.int64).sum()


def llm_int8(weights: Weights, outs: Outputs) -> None:
    from bitsandbytes.functional import int8_vectorwise_quant

    for name, weight in weights.items():
        values, largest, _ = int8_vectorwise_quant(weight.half())
        outs[name].values.copy_(values)
        outs[name].scale.copy_((largest / 127).view(-1, 1))


def nf4(channel: Channel, way: str, weights: Weights, device: Device) -> None:
    """bitsandbytes' 4 bits a weight, or the floor for as many bytes."""
    room = {
        name: torch.zeros(one.numel() // 2, dtype=torch.uint8, device=one.device)
        for name, one in weights.items()
    }
    kept: dict[str, Any] = {}

    def four_bits() -> None:
        from bitsandbytes.functional import quantize_4bit

        for name, weight in weights.items():
            kept[name] = quantize_4bit(weight, quant_type="nf4")

    def work(go: Go, watch: Stopwatch) -> Outcome:
        go()
        if way == BNB:
            four_bits()
        else:
            floor([(weight, room[name]) for name, weight in weights.items()])
        device.synchronize()
        return Outcome(
            nbytes=sum(one.nbytes for one in weights.values()),
            ownership="owned" if device.kind == "cpu" else "device",
            find_out=lambda: {"device": asdict(identity(device)), "tensors": len(weights)},
            unproved=_UNPROVED[way],
            kept=kept,
        )

    if way == BNB:
        importlib.import_module(BNB)  # an import is no part of the work
    perform(channel, work, Stopwatch((), rest="quantise"))


def unlike(weights: Weights, outs: Outputs, chosen: Scheme) -> list[str]:
    """Values and scales that aren't, bit for bit, what the definition gives."""
    faults: list[str] = []
    for name, weight in weights.items():
        right = reference.quantise(weight, chosen, name=name)
        found = {name: outs[name].values, f"{name}_scale": outs[name].scale}
        faults += differing(found.items(), {name: right.values, f"{name}_scale": right.scale})
    return faults[:5]


def quality(weights: Weights, outs: Outputs) -> dict[str, Any]:
    """What was lost: |weight - dequantised| / |weight| over everything, and the channel in which
    that is largest."""
    lost = whole = 0.0
    worst: dict[str, Any] = {"worst_error": -1.0}
    for name, weight in weights.items():
        found = loss(weight, outs[name].values, outs[name].scale)
        size = float(weight.float().square().sum())
        lost, whole = lost + found.relative_error**2 * size, whole + size
        if found.worst_error > worst["worst_error"]:
            worst = {
                "worst_error": found.worst_error,
                "worst_channel": found.worst_channel,
                "worst_tensor": name,
            }
    return {"relative_error": sqrt(lost / whole) if whole else 0.0, **worst}


QUANTISE = Phase(
    name="quantise",
    target="bench.phases.quantise:measure",
    cases=cases,
    memory_bytes=memory_bytes,
    usual=lambda case: False,
    refuses=refuses,
    preload="bench.phases.quantising:preload_compiler",
)
