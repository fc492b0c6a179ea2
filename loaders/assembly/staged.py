"""Any loader, and then one stage after the other, each stamped by itself: what the whole would take
if nothing overlapped. And reading by itself, which nothing that overlaps can beat."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Literal

import torch

from loaders.assembly.cutting import Cutting, touch
from loaders.assembly.values import Assembled, Options, host_targets
from loaders.checkpoint.manifest import Checkpoint
from loaders.contract import Loader
from loaders.device.interface import Device
from loaders.slicing.execute import raw
from loaders.slicing.plan import Parameter
from loaders.transfer.values import Options as TransferOptions
from loaders.transfer.ways import WAYS


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

    A loader may read on in threads of its own while its tensors are sliced, so what is stamped as
    reading may be less than reading takes: see `read_alone`.

    Whatever the loader, the device or the files raise; ValueError for a parameter that lacks a
    tensor because the loader didn't yield it.
    """
    with options.stamp("allocate"):
        host = host_targets(parameters)
    into = [raw(target) for target in host]
    cutting = Cutting(checkpoint, parameters, into, threads=options.readers)
    for name, first, rows in loader.load_rows(checkpoint, unstamped):
        if loader.ownership == "mapped":
            touch(rows)
        with options.stamp("slice"):
            cutting.add(name, first, rows)
        del rows
    with options.stamp("slice"):
        cutting.finish(loader.name)
    if device.kind == "cpu":
        return Assembled(targets=host, notes=tuple(loader.notes))
    return _sent(parameters, host, device, options, loader.notes)


def read_alone(loader: Loader, checkpoint: Checkpoint) -> Assembled:
    """The loader is iterated and a mapped tensor's pages are touched; nothing is made of them."""
    for _, _, rows in loader.load_rows(checkpoint, unstamped):
        if loader.ownership == "mapped":
            touch(rows)
        del rows
    return Assembled(targets=[], notes=tuple(loader.notes))


def unstamped(phase: Literal["open", "allocate"]) -> AbstractContextManager[None]:
    """For a loader whose opening and getting memory are part of reading."""
    return nullcontext()


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
