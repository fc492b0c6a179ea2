"""What a transfer is asked for and what it tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from loaders.device.pinned import PinProbe
from loaders.transfer.plan import ALIGN, SLOT_ALIGN

HostTensors = Sequence[tuple[str, torch.Tensor]]
"""(name, tensor) on the host, contiguous: a checkpoint's real mix, in its order."""


def go_at_once() -> None:
    """The default of `Options.ready`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a transfer goes.

    `slots` slots of `slot_bytes` are the ring's; `bucket_bytes` a bucket's (a bucket goes over in
    one copy where a slot is as large). `packers` threads copy into slots; more slots than those are
    needed, or there is nothing in flight. `probe`: what a child process found out about pinning.
    `stage_mapped`: mapped pages go through resident memory first; None: on NPU they do.
    `ready` is called when all is prepared and the clock is about to start.
    """

    slots: int = 4
    slot_bytes: int = 32 << 20
    bucket_bytes: int = 32 << 20
    packers: int = 1
    probe: PinProbe | None = None
    stage_mapped: bool | None = None
    ready: Callable[[], None] = go_at_once

    def __post_init__(self) -> None:
        """ValueError for sizes or numbers that can't work."""
        least = {"slots": 1, "slot_bytes": SLOT_ALIGN, "bucket_bytes": ALIGN, "packers": 1}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ValueError(f"{name} must be at least {bound}, got {getattr(self, name)}")
        if self.slots <= self.packers:
            raise ValueError(
                f"{self.slots} slots for {self.packers} packers: expected at least "
                f"{self.packers + 1}, or no copy is in flight while they pack"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Each a stamp of its own, None where the way has no such step.

    `allocate`: memory of the device. `pin`: getting the pinned memory. `stage`: copying into it
    before the clock of the transfer starts. `faults`: within the transfer, bringing mapped pages
    into resident memory. `transfer`: by the host's clock, from the first copy until the device was
    synchronised. `device`: the same by the device's events.
    """

    allocate: float
    pin: float | None = None
    stage: float | None = None
    faults: float | None = None
    transfer: float
    device: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One transfer, done: the device was synchronised.

    `tensors`: (name, tensor on the device) in the order given. `nbytes`: payload, gaps of buckets
    not counted. `copies` were queued. `pinned_got`: see HostMemory; None where nothing was to be
    pinned or it isn't known. `started`, `ended`: host clock (time.perf_counter) of `transfer`.
    """

    way: str
    device: str
    copies_are: str
    simulated: bool
    tensors: list[tuple[str, torch.Tensor]] = field(repr=False)
    nbytes: int
    copies: int
    seconds: Seconds
    started: float
    ended: float
    pinned: bool
    pinned_asked: int = 0
    pinned_got: int | None = None
    notes: tuple[str, ...] = field(default=())


CLOCKS_APART = 0.05
CLOCKS_SLACK = 2e-3
"""The two clocks of a transfer agree if they differ by no more than this fraction or these seconds:
the host's also sees queueing the first copy and waking up after the last."""


def clocks_agree(seconds: Seconds) -> bool:
    """Whether host clock and device events tell the same. If not, one of them didn't wait."""
    apart = abs(seconds.transfer - seconds.device)
    return apart <= max(CLOCKS_APART * max(seconds.transfer, seconds.device), CLOCKS_SLACK)
