"""CUDA and Ascend NPU: one adapter, since torch_npu gives torch.npu the functions of torch.cuda.

Everything goes through the device's own module. What torch has for all accelerators alike
is used to find them only: on some backends it accepts a call and does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from loaders.device.faults import RAISED, DeviceError, raise_named
from loaders.device.interface import DeviceMemory, Event, HostMemory, Stream
from loaders.device.pinned import take_pinned

SIMULATED = "simulated"
"""What the name of a test's stand-in for a device begins with."""


class Accelerator:
    """See `loaders.device.interface.Device`. Nothing depends on a current device, since torch keeps
    that by thread: each call names its own."""

    copies_are = "host to device"
    notes: tuple[str, ...] = ()

    def __init__(self, kind: str, index: int) -> None:
        """Starts the device. DeviceError if that fails."""
        self.kind = kind
        self.index = index
        self.text = f"{kind}:{index}"
        try:
            self.torch_device = torch.device(kind, index)
            self.module: Any = torch.get_device_module(self.torch_device)
            self.name = str(self.module.get_device_name(index))
            # The first tensor makes the context: a driver that is too old or a card that another
            # process has to itself says so only now.
            torch.empty(1, dtype=torch.uint8, device=self.torch_device)
            self.module.synchronize(index)
        except RAISED as error:
            raise_named(error, self.text, "starting it")
        self.simulated = self.name.lower().startswith(SIMULATED)

    def empty(self, nbytes: int) -> torch.Tensor:
        try:
            return torch.empty(nbytes, dtype=torch.uint8, device=self.torch_device)
        except RAISED as error:
            raise_named(error, self.text, f"allocating {nbytes} bytes of it")

    def empty_pinned(self, nbytes: int) -> HostMemory:
        try:
            with self.module.device(self.index):  # or it starts device 0 along with this one
                return take_pinned(self.module, nbytes)
        except RAISED as error:
            raise_named(error, self.text, f"pinning {nbytes} bytes of host memory")

    def copy_(
        self, target: torch.Tensor, source: torch.Tensor, *, non_blocking: bool = False
    ) -> None:
        try:
            target.copy_(source, non_blocking=non_blocking)
        except RAISED as error:
            raise_named(error, self.text, f"copying {source.nbytes} bytes")

    def synchronize(self) -> None:
        try:
            self.module.synchronize(self.index)
        except RAISED as error:
            raise_named(error, self.text, "waiting for it")

    def stream(self) -> Stream:
        try:
            return self.module.Stream(self.torch_device)
        except RAISED as error:
            raise_named(error, self.text, "making a stream")

    def current_stream(self) -> Stream:
        try:
            return self.module.current_stream(self.index)
        except RAISED as error:
            raise_named(error, self.text, "asking for its stream")

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        with self.module.stream(stream):
            yield

    def event(self) -> Event:
        try:
            # Blocking: whoever waits sleeps, instead of taking a core from those who read.
            return AcceleratorEvent(self.text, self.module.Event(enable_timing=True, blocking=True))
        except RAISED as error:
            raise_named(error, self.text, "making an event")

    def memory(self) -> DeviceMemory:
        try:
            free, total = self.module.mem_get_info(self.index)
            return DeviceMemory(
                allocated=int(self.module.memory_allocated(self.index)),
                peak=int(self.module.max_memory_allocated(self.index)),
                free=int(free),
                total=int(total),
            )
        except RAISED as error:
            raise_named(error, self.text, "asking for its memory")


class AcceleratorEvent:
    """See `loaders.device.interface.Event`."""

    def __init__(self, device: str, event: Any) -> None:
        self._device = device
        self._event = event
        self._marked = False

    def mark(self, stream: Stream) -> None:
        try:
            self._event.record(stream)
        except RAISED as error:
            raise_named(error, self._device, "marking its stream")
        self._marked = True

    def wait(self) -> None:
        if not self._marked:
            return
        try:
            self._event.synchronize()
        except RAISED as error:
            raise_named(error, self._device, "waiting for a mark")

    def seconds_since(self, earlier: Event) -> float:
        assert isinstance(earlier, AcceleratorEvent)
        if not (self._marked and earlier._marked and self._event.query()):
            raise DeviceError(
                "not-reached",
                f"{self._device}: the time between marks that it hasn't reached: it wasn't waited "
                "for",
            )
        try:
            return float(earlier._event.elapsed_time(self._event)) / 1e3  # milliseconds
        except RAISED as error:
            raise_named(error, self._device, "measuring the time between marks")
