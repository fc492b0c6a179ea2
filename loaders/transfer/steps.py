"""The steps that the ways share: targets, the two clocks, copying within the host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from loaders.device.interface import Device, HostMemory, Stream, raw_bytes, shaped
from loaders.transfer.plan import Bucket, Part
from loaders.transfer.values import HostTensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """One span of time by both clocks, seconds; `started`, `ended` as time.perf_counter."""

    started: float
    ended: float
    device: float

    @property
    def host(self) -> float:
        return self.ended - self.started


@contextmanager
def stopwatch() -> Iterator[list[float]]:
    """The list holds the seconds of the block afterwards."""
    found: list[float] = []
    started = time.perf_counter()
    try:
        yield found
    finally:
        found.append(time.perf_counter() - started)


def host_bytes(host: HostTensors) -> list[torch.Tensor]:
    """The tensors' bytes: uint8, shape [nbytes] each. ValueError, with the name, for one that isn't
    contiguous or isn't on the host."""
    found: list[torch.Tensor] = []
    for name, tensor in host:
        if tensor.device.type != "cpu":
            raise ValueError(f"tensor {name!r} is on {tensor.device}, expected one on the host")
        try:
            found.append(raw_bytes(tensor))
        except ValueError as error:
            raise ValueError(f"tensor {name!r}: {error}") from error
    return found


def timed(
    device: Device, stream: Stream, ready: Callable[[], None], copies: Callable[[], None]
) -> Clocks:
    """Runs `copies` with `stream` current, between two marks, and waits for the whole device."""
    first, last = device.event(), device.event()
    ready()
    started = time.perf_counter()
    try:
        with device.on(stream):
            first.mark(stream)
            copies()
            last.mark(stream)
    finally:
        device.synchronize()  # also after an error: host memory that is still read must stay
    ended = time.perf_counter()
    return Clocks(started=started, ended=ended, device=last.seconds_since(first))


def fresh_targets(device: Device, raws: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A piece of device memory for each tensor: uint8, shape [nbytes]; there when this returns."""
    targets = [device.empty(raw.nbytes) for raw in raws]
    device.synchronize()
    return targets


def finished(host: HostTensors, raws: Sequence[torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
    """The device's memory of each tensor as that tensor: name, dtype and shape of the host's."""
    return [
        (name, shaped(raw, tensor.dtype, tensor.shape))
        for (name, tensor), raw in zip(host, raws, strict=True)
    ]


def scattered(
    host: HostTensors, buckets: Sequence[Bucket], memory: Sequence[torch.Tensor]
) -> list[tuple[str, torch.Tensor]]:
    """The tensors as views of the buckets that they came in. Empty ones are views of nothing."""
    raws: dict[int, torch.Tensor] = {}
    for bucket, whole in zip(buckets, memory, strict=True):
        for part in bucket.parts:
            raws[part.tensor] = whole.narrow(0, part.position, part.nbytes)
    nothing = memory[0].narrow(0, 0, 0) if memory else torch.empty(0, dtype=torch.uint8)
    return finished(host, [raws.get(number, nothing) for number in range(len(host))])


def pack(raws: Sequence[torch.Tensor], parts: Sequence[Part], into: torch.Tensor) -> None:
    """Copies parts of tensors to their positions in host memory. By numpy: it lets other threads
    run, and takes this one alone, where torch would start a team for each caller."""
    room = into.numpy()
    for part in parts:
        source = raws[part.tensor].numpy()[part.start : part.start + part.nbytes]
        room[part.position : part.position + part.nbytes] = source


def pinning_notes(memory: HostMemory) -> list[str]:
    """What a reader must know about memory that was to be pinned."""
    if memory.pinned:
        return []
    return [f"not pinned, copied from pageable memory: {memory.reason}"]
