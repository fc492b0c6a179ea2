"""Any loader, with the later stages going on while it reads."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Generic, TypeVar

from loaders.assembly.cutting import Cutting, touch
from loaders.assembly.staged import unstamped
from loaders.assembly.values import Assembled, Options, host_targets, targets_on
from loaders.checkpoint.manifest import Checkpoint
from loaders.contract import Loader, Rows
from loaders.device.interface import Device
from loaders.slicing.execute import raw
from loaders.slicing.plan import Parameter

AHEAD = 4
"""Tensors that may wait to be sliced: a loader that owns them would else fill the memory."""

Item = TypeVar("Item")


class Lane(Generic[Item]):
    """A thread that does `act` to whatever it is handed, in order; `ahead` may wait. After an error
    it does nothing any more: `put` and leaving the block raise it."""

    def __init__(self, act: Callable[[Item], None], ahead: int) -> None:
        self._act = act
        self._queue: queue.Queue[Item | None] = queue.Queue(ahead)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    def put(self, item: Item) -> None:
        if self._error is not None:
            raise self._error
        self._queue.put(item)

    def __enter__(self) -> Lane[Item]:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._queue.put(None)
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            if self._error is None:
                try:
                    self._act(item)
                except BaseException as error:  # it is raised in the thread that reads
                    self._error = error
            del item  # or the last tensor would stay


def alongside(
    loader: Loader,
    checkpoint: Checkpoint,
    parameters: Sequence[Parameter],
    device: Device,
    options: Options,
) -> Assembled:
    """The calling thread iterates the loader and touches a mapped tensor's pages; a second thread
    slices what has come; on an accelerator a third one copies each parameter there as soon as it is
    whole, from ordinary memory. A borrowed tensor is sliced before the iterator is advanced, while
    the loader's own threads read on. Raises as `loaders.assembly.staged.staged`."""
    with options.stamp("allocate"):
        host = host_targets(parameters)
        targets = host if device.kind == "cpu" else targets_on(device, parameters)
    into = [raw(target) for target in host]
    cutting = Cutting(checkpoint, parameters, into, threads=options.readers)
    sent: set[int] = set()

    def send(number: int) -> None:
        device.copy_(targets[number], host[number])
        sent.add(number)

    def cut(rows: Rows) -> None:
        for number in cutting.add(*rows):
            if sending is not None:
                sending.put(number)

    with ExitStack() as stack:
        accelerator = device.kind != "cpu"
        sending = stack.enter_context(Lane(send, len(parameters) + 1)) if accelerator else None
        borrowed = loader.ownership == "borrowed"
        slicing = None if borrowed else stack.enter_context(Lane(cut, AHEAD))
        for name, first, rows in loader.load_rows(checkpoint, unstamped):
            if loader.ownership == "mapped":
                touch(rows)
            if slicing is None:
                cut((name, first, rows))
            else:
                slicing.put((name, first, rows))
            del rows
    cutting.finish(loader.name)
    if accelerator:
        for number in range(len(parameters)):
            if number not in sent:  # nothing in the files is part of it
                device.copy_(targets[number], host[number])
        device.synchronize()
    return Assembled(targets=targets, copies=len(sent), notes=tuple(loader.notes))
