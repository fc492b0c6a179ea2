"""What every device can do for the loaders, and how a device is named.

Everything that runs on a device goes through this interface: loaders and benches never call the
framework's own stream, event, address and pinning functions, which some backends accept and
silently ignore. What a device hands out is plain tensors.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from loaders.device.faults import DeviceTextError

KINDS = ("cuda", "npu", "cpu")
_TEXT = re.compile(r"(cuda|npu)(?::(0|[1-9]\d*))?")

Stream = Any
"""A queue of work of one device, in order. Opaque: only the device it is from understands it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A device as it was asked for; `index` None is the first one that there is."""

    kind: str
    index: int | None = None


def parse_device(text: str) -> Wanted:
    """`cuda`, `cuda:1`, `npu`, `npu:3`, `cpu` or `auto`. DeviceTextError for anything else."""
    if text in ("cpu", "auto"):
        return Wanted(kind=text)
    match = _TEXT.fullmatch(text)
    if match is None:
        raise DeviceTextError(
            f"device {text!r} isn't known; expected auto, cpu, cuda, cuda:N, npu or npu:N"
        )
    return Wanted(kind=match[1], index=None if match[2] is None else int(match[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Bytes; None where the device doesn't say. `allocated` and `peak` are this process's tensors,
    `free` and `total` the whole device's."""

    allocated: int | None = None
    peak: int | None = None
    free: int | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Memory of the host that copies to a device start from.

    `tensor`: uint8, shape [asked], begins at a page. `got`: bytes of pinned memory that were taken
    for it, rounding included (torch's CUDA allocator takes powers of two); 0 where it isn't pinned,
    None where the allocator doesn't say. `reason`: why it isn't pinned.
    """

    tensor: torch.Tensor
    asked: int
    got: int | None
    pinned: bool
    reason: str | None = None

    def part(self, start: int, nbytes: int) -> torch.Tensor:
        """uint8, shape [nbytes], sharing the memory."""
        return self.tensor.narrow(0, start, nbytes)


class Event(Protocol):
    """A mark in a stream: reached when all work queued there before it is done."""

    def mark(self, stream: Stream) -> None:
        """Queues the mark. May be repeated: the last one counts."""

    def wait(self) -> None:
        """Blocks this thread until the mark is reached; at once if none was queued. The thread
        sleeps, so that the cores stay with those who read."""

    def seconds_since(self, earlier: Event) -> float:
        """On the device's own clock. DeviceError if one of the two isn't reached yet."""


class Device(Protocol):
    """One device. All methods may be called from any thread and raise DeviceError.

    `text`: as `open_device` takes it, with the number ("cuda:0", "cpu"). `name`: as the driver says
    it. `simulated`: it is a test's stand-in, and no figure of it is one of hardware.
    `copies_are`: what a copy to it is called in reports. `notes`: what a reader of its figures must
    know (why the host stands in for an accelerator).
    """

    kind: str
    index: int
    text: str
    name: str
    simulated: bool
    copies_are: str
    notes: tuple[str, ...]
    torch_device: torch.device

    def empty(self, nbytes: int) -> torch.Tensor:
        """Fresh memory of the device: uint8, shape [nbytes]; its content is arbitrary."""

    def empty_pinned(self, nbytes: int) -> HostMemory:
        """Pinned memory of the host. DeviceError if there is none; see `loaders.device.pinned`."""

    def copy_(
        self, target: torch.Tensor, source: torch.Tensor, *, non_blocking: bool = False
    ) -> None:
        """Queues a copy in the stream that is current in this thread. With `non_blocking` it may
        return before: pinned memory must then be left alone until a later mark is reached."""

    def synchronize(self) -> None:
        """Blocks until the work of all streams of the device is done."""

    def stream(self) -> Stream:
        """A new stream, beside the one that is current."""

    def current_stream(self) -> Stream: ...

    def on(self, stream: Stream) -> AbstractContextManager[None]:
        """Makes the stream current in this thread."""

    def event(self) -> Event: ...

    def memory(self) -> DeviceMemory: ...


def shaped(raw: torch.Tensor, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """The uint8 memory `raw` (of any device) as a tensor of that dtype and shape, not copied. Its
    offset in its memory must be a multiple of the element's size."""
    return raw.view(dtype).view(tuple(shape))


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor as uint8, shape [nbytes], sharing its memory. ValueError for one that
    isn't contiguous: its bytes aren't one run."""
    if not tensor.is_contiguous():
        raise ValueError(
            f"a tensor of shape {list(tensor.shape)} isn't contiguous, so it has no run of bytes "
            "that could be copied; copy it first"
        )
    return tensor.reshape(-1).view(torch.uint8)
