"""The host itself as a device: a second buffer of host memory. A copy to it is a memory copy, and
is called that; there is nothing to wait for and nothing to pin."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from loaders.device.faults import RAISED, DeviceError, raise_named
from loaders.device.interface import DeviceMemory, Event, HostMemory, Stream

NOTHING_TO_PIN = "the device is host memory: there is nothing to pin"


class HostDevice:
    """See `loaders.device.interface.Device`."""

    kind = "cpu"
    index = 0
    text = "cpu"
    name = "host memory"
    simulated = False
    copies_are = "memory copy"
    torch_device = torch.device("cpu")

    def __init__(self, notes: tuple[str, ...] = ()) -> None:
        self.notes = notes

    def empty(self, nbytes: int) -> torch.Tensor:
        try:
            # Touched here, as a device's memory is there once it was allocated: else the copy
            # would pay for the first touch of its target's pages.
            return torch.zeros(nbytes, dtype=torch.uint8).fill_(0)
        except RAISED as error:
            raise_named(error, self.text, f"allocating {nbytes} bytes")

    def empty_pinned(self, nbytes: int) -> HostMemory:
        raise DeviceError("no-pinned-memory", f"cpu: {NOTHING_TO_PIN}")

    def copy_(
        self, target: torch.Tensor, source: torch.Tensor, *, non_blocking: bool = False
    ) -> None:
        try:
            target.copy_(source)
        except RAISED as error:
            raise_named(error, self.text, f"copying {source.nbytes} bytes")

    def synchronize(self) -> None:
        return None  # a copy was done when it returned

    def stream(self) -> Stream:
        return None

    def current_stream(self) -> Stream:
        return None

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        yield

    def event(self) -> Event:
        return HostEvent()

    def memory(self) -> DeviceMemory:
        return DeviceMemory()  # what it has is the host's, and stands in the host's record


class HostEvent:
    """See `loaders.device.interface.Event`: work is done when it is queued, so a mark is a time."""

    def __init__(self) -> None:
        self._reached: float | None = None

    def mark(self, stream: Stream) -> None:
        self._reached = time.perf_counter()

    def wait(self) -> None:
        return None

    def seconds_since(self, earlier: Event) -> float:
        assert isinstance(earlier, HostEvent)
        if self._reached is None or earlier._reached is None:
            raise DeviceError("not-reached", "cpu: the time between marks that were never set")
        return self._reached - earlier._reached
