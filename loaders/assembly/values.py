"""What the ways of assembling share: what they are asked for, what they tell, and their targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

import torch

from loaders.checkpoint.dtypes import torch_dtype
from loaders.checkpoint.manifest import Checkpoint
from loaders.device.interface import Device, raw_bytes, shaped
from loaders.device.pinned import PinProbe
from loaders.io.buffers import allocate
from loaders.io.sources import OpenSource
from loaders.slicing.copies import padding_of
from loaders.slicing.plan import Parameter

Stage = Literal["allocate", "read", "slice", "transfer"]
Stamps = Callable[[Stage], AbstractContextManager[None]]
"""The caller's stopwatch: `with stamp("slice"):`. To be used on the calling thread; no two at a
time. What lies outside of all of them is reading."""


def no_stamps(stage: Stage) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`readers` threads read blocks of `block_bytes` (a multiple of the page); as many threads cut.
    `slots`: blocks of the ring that a device copies from; 0: one for each reader and four more.
    `direct`: files are read around the page cache, else `open_source` opens them, or they are read
    through it. `probe`: what a child process found out about pinning."""

    readers: int = 4
    block_bytes: int = 4 << 20
    slots: int = 0
    direct: bool = True
    open_source: OpenSource | None = None
    probe: PinProbe | None = None
    stamp: Stamps = no_stamps


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """The rank's parameters, complete: the device was synchronised, all threads have ended.

    `targets`: one tensor on the device for each parameter, in their order. `copies`: to the device.
    `ring_bytes`, `pinned`: the memory that they started from, 0 and False without one."""

    targets: list[torch.Tensor] = field(repr=False)
    copies: int = 0
    ring_bytes: int = 0
    pinned: bool = False
    notes: tuple[str, ...] = ()


Way = Callable[[Checkpoint, Sequence[Parameter], Device, Options], Assembled]


def host_targets(parameters: Sequence[Parameter]) -> list[torch.Tensor]:
    """Host memory for each parameter, from a page on; no page of it is there yet."""
    found = []
    for parameter in parameters:
        memory = allocate(max(parameter.nbytes, 1)).view()[: parameter.nbytes]
        dtype = torch_dtype(parameter.dtype)
        if parameter.nbytes:
            whole = torch.frombuffer(memory, dtype=torch.uint8)
            found.append(shaped(whole, dtype, parameter.shape))
        else:
            found.append(torch.empty(parameter.shape, dtype=dtype))
    return found


def targets_on(device: Device, parameters: Sequence[Parameter]) -> list[torch.Tensor]:
    """Memory of the device for each parameter, its padding zeros; on the host as `host_targets`,
    where padding is whoever fills it's to clear: touching it here would be work done twice."""
    if device.kind == "cpu":
        return host_targets(parameters)
    found = []
    for parameter in parameters:
        target = shaped(
            device.empty(parameter.nbytes), torch_dtype(parameter.dtype), parameter.shape
        )
        padding = padding_of(parameter)
        if padding is not None:
            raw_bytes(target)[padding[0] : padding[1]].zero_()
        found.append(target)
    device.synchronize()
    return found
