"""Host memory -> device memory: each way that engines do it, and those that they could."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

import torch

from bench.ground.prepare import Prepared
from bench.measuring.channel import Channel
from bench.measuring.child import Stopwatch
from bench.measuring.verify import SHOWN
from bench.measuring.work import Go, Outcome, perform
from bench.phases.contract import Asked, Phase
from bench.phases.task import Task, begin
from bench.phases.tensors import ENOUGH, differing, load, pick
from bench.record.cases import Case
from bench.settings import Settings
from bench.sizes import parse_size
from loaders.device.discover import device_texts, open_device
from loaders.device.identity import identity
from loaders.device.pinned import PinProbe, probe_pin
from loaders.transfer.mapping import mapped_tensors
from loaders.transfer.several import transfer_to_all
from loaders.transfer.values import HostTensors, Options, Transfer, clocks_agree
from loaders.transfer.ways import WAYS

IN_MEMORY = ("pageable", "pinned", "pinned-ring", "coalesced", "whole")
SIZES = ("4KiB", "64KiB", "1MiB", "16MiB", "256MiB", "1GiB")
"""Of the tensors, for the curve: what a copy of its own costs."""

CURVE = ("pageable", "pinned")
IN_FLIGHT = 4
"""Slots of the ring beyond one for each thread that packs: their copies are under way."""

TOGETHER = ("pageable", "pinned-ring", "whole")
"""Ways that are measured to all devices of the host at once, bound to their NUMA nodes and not."""

MOST = 4096
"""Tensors of one size in a sample of the curve."""


def cases(asked: Asked) -> list[Case]:
    """The real mix of tensors by every way; from a cold mapping on every folder; with --full, also
    tensors of one size, for the curve."""
    device, settings = asked.device, asked.settings
    found = [Case(phase="host_to_device", loader=way, device=device) for way in IN_MEMORY]
    if "cold" in settings.caches:
        found += [
            Case(
                phase="host_to_device", loader="mapped", cache="cold", storage=label, device=device
            )
            for label in asked.labels
        ]
    count = len(alike(device))
    if count > 1:
        found += [
            Case(
                phase="host_to_device",
                loader=way,
                options={"devices": count, "bound": bound},
                device=device,
            )
            for way in TOGETHER
            for bound in (False, True)
        ]
    if settings.full:
        found += [
            Case(phase="host_to_device", loader=way, options={"each": size}, device=device)
            for size in SIZES
            for way in CURVE
        ]
    return found


def alike(device: str) -> list[str]:
    """All devices of the host of that one's kind; none is started."""
    kind = device.partition(":")[0]
    return [text for text in device_texts() if text.partition(":")[0] == kind]


def memory_bytes(case: Case, ready: Prepared) -> int:
    """Sources, pinned memory of each device, and the copy that stands for one where there is
    none."""
    each = parse_size(str(case.options.get("each", "1KiB")))
    times = 2 + int(case.options.get("devices", 1))
    return times * max(min(ENOUGH, ready.checkpoint.tensor_bytes), each)


def measure(channel: Channel, *, probe: Mapping[str, Any] | None, **given: Any) -> None:
    """One sample of a transfer."""
    task = begin(given)
    specs = pick(task.checkpoint, ENOUGH)
    if task.way == "mapped":
        names = {spec.name for spec in specs}
        with mapped_tensors(task.checkpoint) as mapped:
            host = [(name, tensor) for name, tensor in mapped if name in names]
            transfer(channel, task, host, None)
            host.clear()
            mapped.clear()
    elif "devices" in task.options:
        to_all(channel, task, list(load(task.checkpoint, specs).items()), probe)
    elif "each" in task.options:
        transfer(channel, task, of_one_size(parse_size(str(task.options["each"]))), probe)
    else:
        transfer(channel, task, list(load(task.checkpoint, specs).items()), probe)


def args(case: Case, settings: Settings) -> dict[str, Any]:
    """What a child process found out about pinning, once in a run: a failed try spoils the process
    that makes it."""
    return {"probe": asdict(probed(case.device)) if case.device != "cpu" else None}


@cache
def probed(device: str) -> PinProbe:
    return probe_pin(device, ENOUGH)


def of_one_size(nbytes: int) -> list[tuple[str, torch.Tensor]]:
    """Tensors of `nbytes` bytes each, about ENOUGH of them together, resident."""
    count = max(1, min(MOST, ENOUGH // nbytes))
    whole = torch.arange(count * nbytes // 8, dtype=torch.int64).view(torch.uint8)
    return [(f"t{number}", whole[number * nbytes :][:nbytes]) for number in range(count)]


def transfer(
    channel: Channel, task: Task, host: HostTensors, probe: Mapping[str, Any] | None
) -> None:
    """Copies, with the clock from the first copy until the device was synchronised."""
    target = open_device(task.device)
    found = PinProbe(**probe) if probe is not None else None

    def work(go: Go, watch: Stopwatch) -> Outcome:
        packers = task.cores  # on a fast link one packing thread would be the limit
        options = Options(packers=packers, slots=packers + IN_FLIGHT, probe=found, ready=go)
        done = WAYS[task.way](target, host, options)
        return Outcome(
            nbytes=done.nbytes,
            ownership="device",
            notes=[*done.notes, *target.notes],
            find_out=lambda: details(done, asdict(identity(target))),
            prove=lambda: wrong(done, host),
            kept=done,
        )

    perform(channel, work, Stopwatch((), rest="transfer"))


def to_all(
    channel: Channel, task: Task, host: HostTensors, probe: Mapping[str, Any] | None
) -> None:
    """The same tensors to every device at once: they share the host's memory and its links."""
    targets = [open_device(text) for text in alike(task.device)]
    found = PinProbe(**probe) if probe is not None else None

    def work(go: Go, watch: Stopwatch) -> Outcome:
        options = Options(probe=found, ready=go)
        bind = bool(task.options["bound"])
        done = transfer_to_all(targets, host, WAYS[task.way], options, bind=bind)
        return Outcome(
            nbytes=done.nbytes,
            ownership="device",
            notes=list(done.notes),
            find_out=lambda: {
                "device": asdict(identity(targets[0])),
                "copies_are": targets[0].copies_are,
                "simulated": targets[0].simulated,
                "bound": list(done.bound),
                "each": [
                    {"device": one.device, "bytes": one.nbytes, "seconds": one.seconds.transfer}
                    for one in done.each
                ],
            },
            prove=lambda: [fault for one in done.each for fault in wrong(one, host)][:SHOWN],
            kept=done,
        )

    perform(channel, work, Stopwatch((), rest="transfer"))


def details(done: Transfer, device: Mapping[str, Any]) -> dict[str, Any]:
    """What stands beside the rate: each stamp, both clocks, pinned bytes asked for and got."""
    seconds = done.seconds
    return {
        "device": device,
        "copies_are": done.copies_are,
        "simulated": done.simulated,
        "copies": done.copies,
        "seconds": {
            "allocate": seconds.allocate,
            "pin": seconds.pin,
            "stage": seconds.stage,
            "faults": seconds.faults,
            "host_clock": seconds.transfer,
            "device_clock": seconds.device,
        },
        "pinned": done.pinned,
        "pinned_asked": done.pinned_asked,
        "pinned_got": done.pinned_got,
    }


def wrong(done: Transfer, host: HostTensors) -> list[str]:
    """Clocks that don't tell the same, and tensors that didn't arrive as they were."""
    faults = []
    if not clocks_agree(done.seconds):
        faults.append(
            f"the device's events tell {done.seconds.device:.4f} s, the host's clock "
            f"{done.seconds.transfer:.4f} s: one didn't wait for the copies, or the host was busy"
        )
    arrived = ((name, tensor.cpu()) for name, tensor in done.tensors)
    return faults + differing(arrived, dict(host))


HOST_TO_DEVICE = Phase(
    name="host_to_device",
    target="bench.phases.host_to_device:measure",
    cases=cases,
    memory_bytes=memory_bytes,
    usual=lambda case: (
        case.loader in {"mapped", "pageable", "pinned-ring", "whole"}
        and not case.options.get("bound")
    ),
    args=args,
)
