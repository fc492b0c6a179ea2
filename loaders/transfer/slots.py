"""Through a ring of slots in host memory: packed by threads, copied out on a side stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from loaders.device.interface import Device, HostMemory
from loaders.device.pinned import pinned_or_ordinary
from loaders.transfer.plan import Fill
from loaders.transfer.steps import Clocks, pack, stopwatch, timed
from loaders.transfer.values import Options

Send = Callable[[Fill, torch.Tensor, bool], int]
"""(fill, its slot, non_blocking) -> number of copies queued in the current stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingRun:
    """What became of it: the clocks, seconds of getting the slots, copies queued, the slots."""

    clocks: Clocks
    pin: float
    copies: int
    memory: HostMemory


def send_through_slots(
    device: Device,
    raws: Sequence[torch.Tensor],
    fills: Sequence[Fill],
    options: Options,
    slot_bytes: int,
    send: Send,
) -> RingRun:
    """Packs each fill into the next slot and sends it, in order. A slot is packed again only when
    the mark behind its last copy is reached; the ring never grows."""
    with stopwatch() as pin:
        count = min(options.slots, max(len(fills), 1))
        # All slots at once: allocators round each piece up, and one piece is rounded once.
        memory = pinned_or_ordinary(device, count * slot_bytes, options.probe)
    slots = [memory.part(number * slot_bytes, slot_bytes) for number in range(count)]
    marks = [device.event() for _ in slots]
    stream = device.stream()
    queued = 0
    pool = ThreadPoolExecutor(max_workers=options.packers, thread_name_prefix="packer")

    def copies() -> None:
        nonlocal queued
        packing: deque[tuple[int, Future[None]]] = deque()

        def send_oldest() -> int:
            number, packed = packing.popleft()
            packed.result()
            slot = number % count
            made = send(fills[number], slots[slot], memory.pinned)
            marks[slot].mark(stream)
            return made

        for number, fill in enumerate(fills):
            slot = number % count
            # One more than packers, so that those go on while this thread sends; never so many
            # that the slot's last fill is among them, since its mark is waited for now.
            while len(packing) >= min(options.packers + 1, count):
                queued += send_oldest()
            marks[slot].wait()
            packing.append((number, pool.submit(pack, raws, fill.parts, slots[slot])))
        while packing:
            queued += send_oldest()

    try:
        clocks = timed(device, stream, options.ready, copies)
    finally:
        pool.shutdown(cancel_futures=True)
    return RingRun(clocks=clocks, pin=pin[0], copies=queued, memory=memory)
