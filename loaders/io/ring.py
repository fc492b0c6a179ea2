"""Reading through a few buffers that are used again and again: what storage gives when nobody has
to pay for fresh memory."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loaders.io.buffers import PAGE, Buffer, allocate
from loaders.io.chunks import ChunkSource, Span
from loaders.io.pool import DEFAULT_BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Bytes of span number `span`, which lie `start` bytes behind its beginning. `data` is
    overwritten once the next block is asked for."""

    span: int
    start: int
    data: memoryview


def make_ring(slots: int, block_bytes: int = DEFAULT_BLOCK, *, huge: bool = True) -> list[Buffer]:
    """Buffers for `stream`, each with room for a block at any offset within the page."""
    return [allocate(block_bytes + PAGE, huge=huge) for _ in range(slots)]


def stream(
    spans: Sequence[Span],
    ring: Sequence[Buffer],
    *,
    threads: int,
    block_bytes: int = DEFAULT_BLOCK,
    direct: bool = False,
    fell_back: dict[str, str] | None = None,
) -> Iterator[Block]:
    """Yields every byte of the spans once, in blocks of at most `block_bytes`, in the order of
    their arrival. The ring is the caller's (see `make_ring`) and can serve again; with one slot
    more than threads, the threads read on while the caller uses a block.

    Closing the generator stops and joins the threads. The first error ends it. `fell_back`
    receives path -> reason for each file that was to be read directly and couldn't.
    """
    source = ChunkSource(spans, block_bytes, direct=direct)
    free: queue.SimpleQueue[Buffer | None] = queue.SimpleQueue()
    ready: queue.SimpleQueue[tuple[Block, Buffer] | BaseException | None] = queue.SimpleQueue()
    for slot in ring:
        if slot.nbytes < block_bytes + PAGE:
            raise ValueError(f"a slot of {slot.nbytes} bytes is too small for {block_bytes}")
        free.put(slot)
    if not ring:
        raise ValueError("the ring has no slot")

    def work() -> None:
        try:
            while (slot := free.get()) is not None and (taken := source.take()) is not None:
                chunk, file = taken
                data = slot.view(chunk.offset % PAGE, chunk.length)
                file.read(data, chunk.offset, chunk.length)
                source.give_back(chunk)
                ready.put((Block(span=chunk.span, start=chunk.start, data=data), slot))
                del data
        except BaseException as error:  # it is raised again in the thread that iterates
            source.stop()
            ready.put(error)
        free.put(None)  # whoever still waits for a slot ends, too
        ready.put(None)

    pool = [threading.Thread(target=work, daemon=True) for _ in range(max(threads, 1))]
    at_work = 0
    try:
        for thread in pool:
            thread.start()
            at_work += 1
        left = at_work
        while left:
            item = ready.get()
            if item is None:
                left -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                block, slot = item
                yield block
                del block, item
                free.put(slot)
    finally:
        source.stop()
        free.put(None)
        for thread in pool[:at_work]:
            thread.join()
        source.close()
        if fell_back is not None:
            fell_back.update(source.fell_back)
