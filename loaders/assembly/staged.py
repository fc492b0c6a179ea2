"""Any loader, and then one stage after the other, each stamped by itself: what the whole would take
if nothing overlapped."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Literal

import torch

from loaders.assembly.values import Assembled, Options, host_targets
from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.text import listed
from loaders.contract import Loader
from loaders.device.interface import Device
from loaders.io.buffers import PAGE
from loaders.slicing.copies import Copy, copies_of
from loaders.slicing.execute import Raw, carry_out, move, raw, zero_padding
from loaders.slicing.plan import Parameter
from loaders.transfer.values import Options as TransferOptions
from loaders.transfer.ways import WAYS

ALONE = 1 << 20
"""Bytes: a smaller tensor is cut by the calling thread alone; threads would cost more."""


def staged(
    loader: Loader,
    checkpoint: Checkpoint,
    parameters: Sequence[Parameter],
    device: Device,
    options: Options,
) -> Assembled:
    """Read: the loader is iterated, and a mapped tensor's pages are touched, so that they are
    there. Slice: its pieces go to their parameters in fresh host memory, before the iterator is
    advanced (a borrowed tensor is gone then). Transfer: the parameters go to the device, through a
    pinned ring; where the host is the device, they are there already.

    Whatever the loader, the device or the files raise; ValueError for a parameter that lacks a
    tensor because the loader didn't yield it.
    """
    shapes = {spec.name: spec.shape for spec in checkpoint.tensors}
    copies: dict[str, list[Copy]] = {}
    for number, parameter in enumerate(parameters):
        for copy in copies_of(number, parameter, shapes):
            copies.setdefault(copy.tensor, []).append(copy)
    with options.stamp("allocate"):
        host = host_targets(parameters)
    into = [raw(target) for target in host]
    for name, tensor in loader.load(checkpoint, _unstamped):
        if loader.ownership == "mapped":
            touch(tensor)
        with options.stamp("slice"):
            _cut(copies.pop(name, []), name, tensor, into, options)
        del tensor
    if copies:
        raise ValueError(
            f"{loader.name} didn't yield {len(copies)} tensor(s) that parameters are made of: "
            f"{listed(list(copies), 3)}"
        )
    with options.stamp("slice"):
        zero_padding(parameters, into)
    if device.kind == "cpu":
        return Assembled(targets=host, notes=tuple(loader.notes))
    return _sent(parameters, host, device, options, loader.notes)


def _unstamped(phase: Literal["open", "allocate"]) -> AbstractContextManager[None]:
    return nullcontext()  # opening and getting memory are part of reading here


def touch(tensor: torch.Tensor) -> int:
    """Reads a byte of every page of a host tensor; returns their sum, which means nothing."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return int(flat[::PAGE].sum()) + (int(flat[-1]) if flat.numel() else 0)


def _cut(
    copies: Sequence[Copy],
    name: str,
    tensor: torch.Tensor,
    into: Sequence[Raw],
    options: Options,
) -> None:
    source = raw(tensor)
    if sum(copy.nbytes for copy in copies) >= ALONE:
        carry_out(copies, {name: source}, into, threads=options.readers)
        return
    for copy in copies:
        move(copy, source, copy.source, into[copy.parameter])


def _sent(
    parameters: Sequence[Parameter],
    host: list[torch.Tensor],
    device: Device,
    options: Options,
    notes: Sequence[str],
) -> Assembled:
    named = [(one.name, tensor) for one, tensor in zip(parameters, host, strict=True)]
    with ExitStack() as stack:
        stack.enter_context(options.stamp("allocate"))

        def memory_is_there() -> None:
            stack.close()
            stack.enter_context(options.stamp("transfer"))

        how = TransferOptions(probe=options.probe, ready=memory_is_there)
        done = WAYS["pinned-ring"](device, named, how)
    return Assembled(
        targets=[tensor for _, tensor in done.tensors],
        copies=done.copies,
        ring_bytes=done.pinned_asked,
        pinned=done.pinned,
        notes=(*notes, *done.notes),
    )
