"""Disk -> ring -> device. Both stages at once, or one of them alone with the same ring and blocks,
so that the whole can be held against its slowest stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Literal

import torch

from loaders.checkpoint.manifest import Checkpoint, TensorSpec
from loaders.device.interface import Device, HostMemory, Stream, shaped
from loaders.device.pinned import PinProbe, pinned_or_ordinary
from loaders.io.buffers import PAGE
from loaders.io.chunks import plan_chunks
from loaders.io.errors import LoadError
from loaders.io.sources import OpenSource, summed
from loaders.io.tensors import dtype_of
from loaders.pipeline.feed import Feed, Slot
from loaders.pipeline.plan import Shard, parts_of, plan_shards
from loaders.transfer.plan import Part
from loaders.transfer.steps import Clocks, pinning_notes, stopwatch, timed
from loaders.transfer.values import go_at_once

Stage = Literal["both", "read", "copy"]

IN_FLIGHT = 4
"""Slots beyond one for each reader: those whose copies are queued or under way."""

RESIDENT = (
    "blocks are read into the ring, which is resident, and copied from there: a direct copy of "
    "mapped pages can hang on an NPU (vLLM pull requests 49991, 50794)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """`readers` threads read blocks of `block_bytes` (a multiple of the page) into a ring of
    `slots` blocks; 0: one for each reader and IN_FLIGHT more. `open_source` opens files, else they
    are read through the page cache, or around it with `direct`. `probe`, `ready`: as in
    loaders.transfer.values.Options."""

    readers: int = 2
    block_bytes: int = 16 << 20
    slots: int = 0
    direct: bool = False
    open_source: OpenSource | None = None
    probe: PinProbe | None = None
    ready: Callable[[], None] = go_at_once

    def __post_init__(self) -> None:
        """ValueError for sizes or numbers that can't work."""
        if self.readers < 1 or self.slots < 0:
            raise ValueError(
                f"readers must be at least 1 and slots at least 0, got {self.readers} and "
                f"{self.slots}"
            )
        if self.block_bytes < PAGE or self.block_bytes % PAGE:
            raise ValueError(f"block_bytes must be a multiple of {PAGE}, got {self.block_bytes}")

    @property
    def ring_slots(self) -> int:
        return self.slots or self.readers + IN_FLIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelined:
    """One run, done: all threads have ended and the device was synchronised.

    `tensors`: (name, tensor on the device) in the manifest's order, where both stages ran.
    `allocate`, `pin`: seconds for the device's memory and for the ring, before the clock started.
    `seconds`: by the host's clock; `device`: by the device's events, None where nothing was copied.
    `nbytes`: tensor bytes, each once. `ring_bytes`: the ring, however large the checkpoint.
    `pinned_got`: see HostMemory.
    """

    stage: Stage
    device: str
    copies_are: str
    simulated: bool
    tensors: list[tuple[str, torch.Tensor]] = field(repr=False)
    nbytes: int
    copies: int
    allocate: float
    pin: float
    seconds: float
    device_seconds: float | None
    pinned: bool
    ring_bytes: int
    pinned_got: int | None
    notes: tuple[str, ...]


def run_pipeline(
    checkpoint: Checkpoint, device: Device, options: PipelineOptions, stage: Stage = "both"
) -> Pipelined:
    """Loads the checkpoint to the device.

    `read` alone fills the ring and copies nothing; `copy` alone copies the same blocks out of a
    ring that nothing is read into (what arrives means nothing). LoadError, OSError or DeviceError
    for the first thing that fails.
    """
    dtypes = [_checked_dtype(spec) for spec in checkpoint.tensors]
    shards = plan_shards(checkpoint, PAGE)
    with stopwatch() as allocate:
        wanted = () if stage == "read" else checkpoint.tensors
        targets = [device.empty(spec.nbytes) for spec in wanted]
        device.synchronize()
    with stopwatch() as pin:
        memory = _ring(device, shards, options)
    run = _Run(device, shards, memory, targets, options)
    notes = pinning_notes(memory)
    if stage == "copy":
        clocks = timed(device, run.stream, options.ready, run.copy_alone)
    else:
        feed = run.feed()
        work = run.read_alone if stage == "read" else run.both
        clocks = timed(device, run.stream, options.ready, lambda: work(feed))
        notes += summed(feed.notes)
    if device.kind == "npu" and stage == "both":
        notes.append(RESIDENT)
    tensors: list[tuple[str, torch.Tensor]] = []
    if stage == "both":
        tensors = [
            (spec.name, shaped(raw, dtype, spec.shape))
            for spec, dtype, raw in zip(checkpoint.tensors, dtypes, targets, strict=True)
        ]
    return _told(checkpoint, device, stage, tensors, run, clocks, allocate[0], pin[0], notes)


class _Run:
    """What the stages share. `copies`: queued so far."""

    def __init__(
        self,
        device: Device,
        shards: list[Shard],
        memory: HostMemory,
        targets: list[torch.Tensor],
        options: PipelineOptions,
    ) -> None:
        self.device, self.shards, self.memory = device, shards, memory
        self.targets, self.options = targets, options
        self.stream: Stream = device.stream()
        self.copies = 0
        block = options.block_bytes
        self.slots = [
            Slot(memory=memory.part(start, block), mark=device.event())
            for start in range(0, memory.asked, block)
        ]

    def feed(self) -> Feed:
        return Feed(
            [shard.span for shard in self.shards],
            self.slots,
            readers=self.options.readers,
            block_bytes=self.options.block_bytes,
            direct=self.options.direct,
            open_source=self.options.open_source,
        )

    def both(self, feed: Feed) -> None:
        with feed:
            for chunk, slot in feed.blocks():
                self._copy(slot, parts_of(chunk, self.shards[chunk.span]))
                feed.give_back(slot)

    def read_alone(self, feed: Feed) -> None:
        with feed:
            for _, slot in feed.blocks():
                feed.give_back(slot)

    def copy_alone(self) -> None:
        spans = [shard.span for shard in self.shards]
        for number, chunk in enumerate(plan_chunks(spans, self.options.block_bytes)):
            slot = self.slots[number % len(self.slots)]
            slot.mark.wait()
            self._copy(slot, parts_of(chunk, self.shards[chunk.span]))

    def _copy(self, slot: Slot, parts: Iterator[Part]) -> None:
        for part in parts:
            self.device.copy_(
                self.targets[part.tensor].narrow(0, part.start, part.nbytes),
                slot.memory.narrow(0, part.position, part.nbytes),
                non_blocking=self.memory.pinned,
            )
            self.copies += 1
        slot.mark.mark(self.stream)


def _ring(device: Device, shards: list[Shard], options: PipelineOptions) -> HostMemory:
    """The ring: no more blocks than the checkpoint has."""
    block = options.block_bytes
    blocks = sum(
        -(-(shard.span.offset + shard.span.length) // block) - shard.span.offset // block
        for shard in shards
    )
    return pinned_or_ordinary(device, min(options.ring_slots, blocks) * block, options.probe)


def _told(
    checkpoint: Checkpoint,
    device: Device,
    stage: Stage,
    tensors: list[tuple[str, torch.Tensor]],
    run: _Run,
    clocks: Clocks,
    allocate: float,
    pin: float,
    notes: list[str],
) -> Pipelined:
    return Pipelined(
        stage=stage,
        device=device.text,
        copies_are=device.copies_are,
        simulated=device.simulated,
        tensors=tensors,
        nbytes=checkpoint.tensor_bytes,
        copies=run.copies,
        allocate=allocate,
        pin=pin,
        seconds=clocks.host,
        device_seconds=None if stage == "read" else clocks.device,
        pinned=run.memory.pinned,
        ring_bytes=run.memory.asked,
        pinned_got=run.memory.got,
        notes=tuple(dict.fromkeys(notes)),
    )


def _checked_dtype(spec: TensorSpec) -> torch.dtype:
    """LoadError if torch lacks the dtype, or if shape and bytes disagree."""
    dtype = dtype_of(spec)
    expected = prod(spec.shape) * dtype.itemsize
    if expected != spec.nbytes:
        raise LoadError(
            f"{spec.file}: tensor {spec.name!r} is {spec.dtype} {list(spec.shape)}, expected "
            f"{expected} bytes, found {spec.nbytes}"
        )
    return dtype
