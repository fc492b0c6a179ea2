"""The best way here: every byte that the rank keeps is read once, at the rate of the storage, and
is on its way to its place while the next ones are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from loaders.assembly.values import Assembled, Options, targets_on
from loaders.checkpoint.manifest import Checkpoint
from loaders.device.interface import Device, HostMemory, raw_bytes
from loaders.device.pinned import pinned_or_ordinary
from loaders.io.buffers import PAGE
from loaders.io.chunks import Chunk, Span, plan_chunks
from loaders.io.sources import summed
from loaders.pipeline.feed import Feed, Slot
from loaders.slicing.copies import Copy
from loaders.slicing.execute import raw
from loaders.slicing.fetch import Fetch, fetches
from loaders.slicing.plan import Parameter
from loaders.slicing.sliced_read import read_sliced
from loaders.slicing.straight import placed
from loaders.transfer.steps import pinning_notes, timed

IN_FLIGHT = 4
"""Slots beyond one for each reader: those whose copies are queued or under way."""

COMPACT = 3
"""Blocks of pinned memory that rows are put together in: one being filled, two being copied."""


def overlapped(
    checkpoint: Checkpoint, parameters: Sequence[Parameter], device: Device, options: Options
) -> Assembled:
    """Where the host is the device: reader threads read straight to the places in fresh memory,
    whose pages they touch by it (loaders.slicing.straight), and through a small buffer that they
    use again what can't be read so.

    On an accelerator: reader threads fill the slots of a pinned ring; what of a block is one run in
    the parameter is copied from the slot, rows of a cut across are put together in a second pinned
    block first. A slot is filled again once the device is past its copies.

    The first error of any thread or of the device: LoadError, OSError, DeviceError, ValueError.
    """
    if device.kind == "cpu":
        with options.stamp("allocate"):
            targets = placed(fetches(checkpoint, parameters), parameters)
        told = read_sliced(
            checkpoint,
            parameters,
            [raw(target) for target in targets],
            threads=options.readers,
            block_bytes=options.block_bytes,
            direct=options.direct,
            open_source=options.open_source,
        )
        return Assembled(targets=targets, notes=tuple(summed(told)))
    plan = [_from_page(one) for one in fetches(checkpoint, parameters)]
    with options.stamp("allocate"):
        targets = targets_on(device, parameters)
        run = _Run(checkpoint, plan, targets, device, options)
    timed(device, run.stream, lambda: None, run.all)
    notes = pinning_notes(run.ring) + summed(run.feed.notes)
    return Assembled(
        targets=targets,
        copies=run.copies,
        ring_bytes=run.ring.asked + run.rows.asked,
        pinned=run.ring.pinned,
        notes=tuple(dict.fromkeys(notes)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """A range of a file from a page on; `head` bytes before the fetch's own first byte."""

    fetch: Fetch
    head: int
    offset: int
    length: int

    @property
    def has_rows(self) -> bool:
        """Whether any of its copies is of rows that lie apart."""
        return any(copy.count > 1 for _, _, copies in self.fetch.groups for copy in copies)

    def copies(self, chunk: Chunk) -> Iterator[Copy]:
        """What of the range lies in a chunk, sources from the chunk's first byte."""
        return self.fetch.within(chunk.start - self.head, chunk.length)


def _from_page(fetch: Fetch) -> _Range:
    head = fetch.offset % PAGE
    return _Range(fetch=fetch, head=head, offset=fetch.offset - head, length=fetch.length + head)


class _Run:
    """One load to an accelerator: its feed, its ring, and the second ring for rows."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        plan: Sequence[_Range],
        targets: Sequence[torch.Tensor],
        device: Device,
        options: Options,
    ) -> None:
        self.plan, self.device = plan, device
        self.targets = [raw_bytes(target) for target in targets]
        self.stream = device.stream()
        self.copies = 0
        block = options.block_bytes
        paths = {file.name: file.path for file in checkpoint.files}
        spans = [
            Span(path=paths[one.fetch.file], offset=one.offset, length=one.length) for one in plan
        ]
        blocks = sum(1 for _ in plan_chunks(spans, block))
        wanted = min(options.slots or options.readers + IN_FLIGHT, blocks)
        self.ring = pinned_or_ordinary(device, wanted * block, options.probe)
        across = any(one.has_rows for one in plan)
        self.rows = pinned_or_ordinary(device, COMPACT * block if across else 0, options.probe)
        self.compact = self._slots(self.rows, block)
        self.next = 0
        self.feed = Feed(
            spans,
            self._slots(self.ring, block),
            readers=options.readers,
            block_bytes=block,
            direct=options.direct,
            open_source=options.open_source,
        )

    def _slots(self, memory: HostMemory, block: int) -> list[Slot]:
        return [
            Slot(memory=memory.part(start, block), mark=self.device.event())
            for start in range(0, memory.asked, block)
        ]

    def all(self) -> None:
        with self.feed as feed:
            for chunk, slot in feed.blocks():
                for copy in self.plan[chunk.span].copies(chunk):
                    if copy.count == 1:
                        self._send(copy, slot.memory, copy.source, self.ring.pinned)
                    else:
                        self._send_rows(copy, slot.memory)
                slot.mark.mark(self.stream)
                feed.give_back(slot)

    def _send(self, copy: Copy, memory: torch.Tensor, start: int, pinned: bool) -> None:
        self.device.copy_(
            self.targets[copy.parameter].narrow(0, copy.target, copy.nbytes),
            memory.narrow(0, start, copy.nbytes),
            non_blocking=pinned,
        )
        self.copies += 1

    def _send_rows(self, copy: Copy, memory: torch.Tensor) -> None:
        """Rows that lie apart in the file: one run in a second block, then one copy. Where they lie
        apart in the parameter, too, the device puts them in their places."""
        slot = self.compact[self.next]
        self.next = (self.next + 1) % len(self.compact)
        slot.mark.wait()
        count, length = copy.count, copy.length
        rows = slot.memory.numpy()
        source = memory.numpy()
        # The rows of one block: no more bytes than the block has.
        np.copyto(
            rows[: copy.nbytes].reshape(count, length),
            np.lib.stride_tricks.as_strided(
                source[copy.source :], (count, length), (copy.source_stride, 1)
            ),
        )
        if copy.target_stride == length:
            self._send(copy, slot.memory, 0, self.rows.pinned)
        else:
            target = self.targets[copy.parameter]
            place = target.as_strided(
                (count, length), (copy.target_stride, 1), target.storage_offset() + copy.target
            )
            self.device.copy_(
                place, slot.memory[: copy.nbytes].view(count, length), non_blocking=self.rows.pinned
            )
            self.copies += 1
        slot.mark.mark(self.stream)
