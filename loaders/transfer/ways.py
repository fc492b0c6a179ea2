"""The ways from host tensors to device tensors. Every way is timed in the same manner, ends when
the device was synchronised, and gives tensors with all their bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

from loaders.device.interface import Device
from loaders.device.pinned import ordinary, pinned_each, pinned_or_ordinary
from loaders.transfer.plan import Bucket, Fill, cut_buckets, plan_buckets, plan_fills, plan_whole
from loaders.transfer.slots import RingRun, send_through_slots
from loaders.transfer.steps import (
    Clocks,
    finished,
    fresh_targets,
    host_bytes,
    pack,
    pinning_notes,
    scattered,
    stopwatch,
    timed,
)
from loaders.transfer.values import HostTensors, Options, Seconds, Transfer

Way = Callable[[Device, HostTensors, Options], Transfer]

STAGED = (
    "mapped pages went through resident memory: a direct copy of pages that aren't resident can "
    "hang on an NPU (vLLM pull requests 49991, 50794)"
)
DIRECT_ON_NPU = (
    "mapped pages were copied directly, as asked: on an NPU that can hang where they aren't "
    "resident (vLLM pull requests 49991, 50794)"
)


def pageable(device: Device, host: HostTensors, options: Options) -> Transfer:
    """One blocking copy a tensor from ordinary memory: what engines do by default (vLLM 0.33
    default_loader: `param.copy_(loaded_weight)`). The tensors must be resident; see `mapped`."""
    raws = host_bytes(host)
    with stopwatch() as allocate:
        targets = fresh_targets(device, raws)

    def copies() -> None:
        for target, raw in zip(targets, raws, strict=True):
            if raw.nbytes:
                device.copy_(target, raw)

    clocks = timed(device, device.current_stream(), options.ready, copies)
    return _transfer("pageable", device, host, raws, targets, clocks, allocate=allocate[0])


def mapped(device: Device, host: HostTensors, options: Options) -> Transfer:
    """As `pageable`, from tensors over a file's mapping (see `loaders.transfer.mapping`): the copy
    waits for the faults of pages that aren't resident, as in production.

    On NPU, where such a copy can hang, each tensor is first copied into one reused piece of
    resident memory; `seconds.faults` is what that took, and a note says so.
    """
    raws = host_bytes(host)
    staged = device.kind == "npu" if options.stage_mapped is None else options.stage_mapped
    with stopwatch() as allocate:
        targets = fresh_targets(device, raws)
        largest = max((raw.nbytes for raw in raws), default=0)
        resident = ordinary(largest, "staging").tensor if staged else None
    faults = 0.0

    def copies() -> None:
        nonlocal faults
        for target, raw in zip(targets, raws, strict=True):
            if not raw.nbytes:
                continue
            source = raw
            if resident is not None:
                began = time.perf_counter()
                source = resident.narrow(0, 0, raw.nbytes)
                source.numpy()[:] = raw.numpy()
                faults += time.perf_counter() - began
            device.copy_(target, source)  # blocking, so that the staging memory is free again

    clocks = timed(device, device.current_stream(), options.ready, copies)
    notes = [STAGED] if staged else [DIRECT_ON_NPU] if device.kind == "npu" else []
    return _transfer(
        "mapped",
        device,
        host,
        raws,
        targets,
        clocks,
        allocate=allocate[0],
        faults=faults if staged else None,
        notes=notes,
    )


def pinned(device: Device, host: HostTensors, options: Options) -> Transfer:
    """One copy a tensor from pinned memory of its own, all queued on a side stream. Pinning and
    copying into it come before, each with its stamp: together what `tensor.pin_memory()` costs."""
    raws = host_bytes(host)
    filled = [number for number, raw in enumerate(raws) if raw.nbytes]
    with stopwatch() as allocate:
        targets = fresh_targets(device, raws)
    with stopwatch() as pin:
        memory = pinned_each(device, [raws[number].nbytes for number in filled], options.probe)
    with stopwatch() as stage:
        for number, each in zip(filled, memory, strict=True):
            each.tensor.numpy()[:] = raws[number].numpy()

    def copies() -> None:
        for number, each in zip(filled, memory, strict=True):
            device.copy_(targets[number], each.tensor, non_blocking=each.pinned)

    clocks = timed(device, device.stream(), options.ready, copies)
    got = [each.got for each in memory]
    return _transfer(
        "pinned",
        device,
        host,
        raws,
        targets,
        clocks,
        allocate=allocate[0],
        pin=pin[0],
        stage=stage[0],
        pinned=all(each.pinned for each in memory),
        asked=sum(each.asked for each in memory),
        got=None if None in got else sum(each or 0 for each in got),
        notes=[note for each in memory for note in pinning_notes(each)],
    )


def pinned_ring(device: Device, host: HostTensors, options: Options) -> Transfer:
    """Through a few pinned slots: threads copy into those that are free, while copies out of the
    others are in flight on a side stream. Each tensor has memory of its own on the device."""
    raws = host_bytes(host)
    with stopwatch() as allocate:
        targets = fresh_targets(device, raws)

    def send(fill: Fill, slot: torch.Tensor, non_blocking: bool) -> int:
        for part in fill.parts:
            device.copy_(
                targets[part.tensor].narrow(0, part.start, part.nbytes),
                slot.narrow(0, part.position, part.nbytes),
                non_blocking=non_blocking,
            )
        return len(fill.parts)

    fills = list(plan_fills([raw.nbytes for raw in raws], options.slot_bytes))
    run = send_through_slots(device, raws, fills, options, options.slot_bytes, send)
    return _ring_transfer("pinned-ring", device, host, raws, run, allocate[0], targets=targets)


def coalesced(device: Device, host: HostTensors, options: Options) -> Transfer:
    """Tensors are packed side by side into pinned buckets; each goes over in one copy and is
    scattered on the device as views. A tensor that is larger than a bucket has one of its own."""
    raws = host_bytes(host)
    buckets = plan_buckets([raw.nbytes for raw in raws], options.bucket_bytes)
    with stopwatch() as allocate:
        memory = [device.empty(bucket.nbytes) for bucket in buckets] or [device.empty(0)]
        device.synchronize()

    def send(fill: Fill, slot: torch.Tensor, non_blocking: bool) -> int:
        assert fill.bucket is not None
        target = memory[fill.bucket].narrow(0, fill.offset, fill.nbytes)
        device.copy_(target, slot.narrow(0, 0, fill.nbytes), non_blocking=non_blocking)
        return 1

    fills = list(cut_buckets(buckets, options.bucket_bytes))
    run = send_through_slots(device, raws, fills, options, options.bucket_bytes, send)
    laid = buckets or [Bucket(nbytes=0, parts=())]
    return _ring_transfer(
        "coalesced", device, host, raws, run, allocate[0], views=scattered(host, laid, memory)
    )


def whole(device: Device, host: HostTensors, options: Options) -> Transfer:
    """All tensors in one copy from pinned memory: what the link gives, and no engine reaches."""
    raws = host_bytes(host)
    layout = plan_whole([raw.nbytes for raw in raws])
    with stopwatch() as allocate:
        target = device.empty(layout.nbytes)
        device.synchronize()
    with stopwatch() as pin:
        memory = pinned_or_ordinary(device, layout.nbytes, options.probe)
    with stopwatch() as stage:
        pack(raws, layout.parts, memory.tensor)

    def copies() -> None:
        if layout.nbytes:
            device.copy_(target, memory.tensor, non_blocking=memory.pinned)

    clocks = timed(device, device.stream(), options.ready, copies)
    return _transfer(
        "whole",
        device,
        host,
        raws,
        [],
        clocks,
        allocate=allocate[0],
        pin=pin[0],
        stage=stage[0],
        copies=1 if layout.nbytes else 0,
        pinned=memory.pinned,
        asked=memory.asked,
        got=memory.got,
        notes=pinning_notes(memory),
        views=scattered(host, [layout], [target]),
    )


def _ring_transfer(
    way: str,
    device: Device,
    host: HostTensors,
    raws: list[torch.Tensor],
    run: RingRun,
    allocate: float,
    *,
    targets: list[torch.Tensor] | None = None,
    views: list[tuple[str, torch.Tensor]] | None = None,
) -> Transfer:
    return _transfer(
        way,
        device,
        host,
        raws,
        targets or [],
        run.clocks,
        allocate=allocate,
        pin=run.pin,
        copies=run.copies,
        pinned=run.memory.pinned,
        asked=run.memory.asked,
        got=run.memory.got,
        notes=pinning_notes(run.memory),
        views=views,
    )


def _transfer(
    way: str,
    device: Device,
    host: HostTensors,
    raws: list[torch.Tensor],
    targets: list[torch.Tensor],
    clocks: Clocks,
    *,
    allocate: float,
    pin: float | None = None,
    stage: float | None = None,
    faults: float | None = None,
    copies: int | None = None,
    pinned: bool = False,
    asked: int = 0,
    got: int | None = None,
    notes: list[str] | None = None,
    views: list[tuple[str, torch.Tensor]] | None = None,
) -> Transfer:
    return Transfer(
        way=way,
        device=device.text,
        copies_are=device.copies_are,
        simulated=device.simulated,
        tensors=finished(host, targets) if views is None else views,
        nbytes=sum(raw.nbytes for raw in raws),
        copies=sum(1 for raw in raws if raw.nbytes) if copies is None else copies,
        seconds=Seconds(
            allocate=allocate,
            pin=pin,
            stage=stage,
            faults=faults,
            transfer=clocks.host,
            device=clocks.device,
        ),
        started=clocks.started,
        ended=clocks.ended,
        pinned=pinned,
        pinned_asked=asked,
        pinned_got=got,
        notes=tuple(dict.fromkeys(notes or [])),
    )


WAYS: Mapping[str, Way] = {
    "pageable": pageable,
    "mapped": mapped,
    "pinned": pinned,
    "pinned-ring": pinned_ring,
    "coalesced": coalesced,
    "whole": whole,
}
