"""The ceilings: what this storage and this memory can do, read by nothing but the bare calls.

Each runs in a child of its own, consumes its bytes as every loader's are consumed (tensor by tensor
as they lie in the files, see bench.measuring.pieces), and has the sum of each tensor compared with
the files'. Rings and sources are touched before the clock runs; memory
that an owner would have to get is got inside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from bench.measuring.channel import Channel
from bench.measuring.child import Counted, Stopwatch, manifest, prepare, reference
from bench.measuring.consume import byte_sum
from bench.measuring.pieces import Pieces, Tally, pieces_of
from loaders.io.ahead import TouchAhead
from loaders.io.buffers import allocate, page_kind, pages_under, touch
from loaders.io.chunks import plan_chunks
from loaders.io.pool import ReaderPool
from loaders.io.ring import make_ring, stream

HEADROOM = 2
"""Slots of a ring for each thread: one is being filled while the other is consumed."""

LEAD = 256 << 20
"""Bytes that fresh memory is touched ahead of those who read into it."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a ceiling's reader did: bytes that arrived and what they were, and what there is to find
    out about it once the clock has stopped."""

    tally: Tally = field(default_factory=Tally)
    find_out: Callable[[], dict[str, Any]] = dict
    kept: object = None
    """Memory that its owner would keep: giving it back isn't part of reading into it."""


Work = Callable[[Stopwatch, Outcome], None]


def measure(
    channel: Channel,
    *,
    reader: str,
    manifest_path: str | None,
    reference_path: str | None,
    touch_bytes: int,
    cores: int,
    options: dict[str, Any],
) -> None:
    """One sample of a ceiling, with the messages of a loader's sample (bench.measuring.child).
    Both paths are None for what reads no file."""
    prepare(touch_bytes, cores)
    files = pieces_of(manifest(path=manifest_path)) if manifest_path else []
    with ExitStack() as stack:
        work = READERS[reader](stack, files, cores, options)
        watch, outcome = Stopwatch(), Outcome()
        counted = Counted(channel)
        counted.wait_for_go()
        began = time.perf_counter()
        work(watch, outcome)
        total = time.perf_counter() - began
        report = counted.done()
        report.update(
            bytes=outcome.tally.nbytes,
            seconds=watch.seconds(total),
            ownership=OWNERSHIP.get(reader),
            notes=[],
            details=outcome.find_out(),
        )
        channel.send(report)
    expected = reference(path=reference_path).sums if reference_path else {}
    faults = [f"{reader}: {text}" for text in outcome.tally.faults(expected, files)]
    channel.send({"faults": faults})


def ring(stack: ExitStack, files: Sequence[Pieces], cores: int, options: dict[str, Any]) -> Work:
    """N threads read blocks into a reused ring. Options: direct, block (bytes), threads, pages
    ("4k" or "huge")."""
    block, threads = options["block"], options["threads"]
    slots = make_ring(threads * HEADROOM, block, huge=options["pages"] == "huge")
    for slot in slots:
        touch(slot, cores)
    spans = [one.span for one in files]
    huge_kb = page_kind(slots[0]).huge_kb

    def work(watch: Stopwatch, outcome: Outcome) -> None:
        fell_back: dict[str, str] = {}
        arriving = stream(
            spans,
            slots,
            threads=threads,
            block_bytes=block,
            direct=options["direct"],
            fell_back=fell_back,
        )
        for got in arriving:
            _consume(files[got.span], got.start, got.data, watch, outcome)
        outcome.find_out = lambda: {**options, "huge_kb": huge_kb, **_reasons(fell_back)}

    return work


def owned(stack: ExitStack, files: Sequence[Pieces], cores: int, options: dict[str, Any]) -> Work:
    """N threads read into fresh memory, all of which stays, and one more touches it ahead of them,
    as a loader may. The bare form of every loader that owns its tensors."""
    block, threads = options["block"], options["threads"]
    spans = [one.span for one in files]

    def work(watch: Stopwatch, outcome: Outcome) -> None:
        with watch.stamp("allocate"):
            huge = options["pages"] == "huge"
            buffers = [allocate(span.length, huge=huge) for span in spans]
            memory = [buffer.view() for buffer in buffers]
        outcome.kept = memory
        touching = TouchAhead(buffers, LEAD)
        buffers.clear()
        pool = ReaderPool(
            spans,
            memory,
            threads=threads,
            block_bytes=block,
            direct=options["direct"],
            on_arrival=touching.reach,
        )
        with touching, pool:
            for chunk in plan_chunks(spans, block):
                pool.wait(chunk.span, chunk.start + chunk.length)
                data = memory[chunk.span][chunk.start :][: chunk.length]
                _consume(files[chunk.span], chunk.start, data, watch, outcome)
        outcome.find_out = lambda: {
            **options,
            "huge_kb": pages_under(memory).huge_kb,
            **_reasons(pool.fell_back),
        }

    return work


def memory_read(
    stack: ExitStack, files: Sequence[Pieces], cores: int, options: dict[str, Any]
) -> Work:
    """All cores read memory that is there already: what a mapping of cached pages can't exceed."""
    buffer = stack.enter_context(allocate(options["bytes"], huge=None))
    touch(buffer, cores)

    def work(watch: Stopwatch, outcome: Outcome) -> None:
        with watch.stamp("consume"):
            byte_sum(torch.frombuffer(buffer.view(), dtype=torch.uint8))
        outcome.tally.nbytes = buffer.nbytes

    return work


def memory_copy(
    stack: ExitStack, files: Sequence[Pieces], cores: int, options: dict[str, Any]
) -> Work:
    """`copiers` threads copy touched memory to touched memory; counts the bytes copied, once."""
    nbytes, copiers = options["bytes"], options["copiers"]
    source = stack.enter_context(allocate(nbytes, huge=None))
    target = stack.enter_context(allocate(nbytes, huge=None))
    touch(source, cores)
    touch(target, cores)
    step = max(1, -(-nbytes // copiers))
    parts = [(start, min(step, nbytes - start)) for start in range(0, nbytes, step)]

    def copy(start: int, length: int) -> None:
        np.copyto(target.array(start, length), source.array(start, length))

    pool = stack.enter_context(ThreadPoolExecutor(max_workers=copiers))

    def work(watch: Stopwatch, outcome: Outcome) -> None:
        for future in [pool.submit(copy, *part) for part in parts]:
            future.result()
        outcome.tally.nbytes = nbytes

    return work


def first_touch(
    stack: ExitStack, files: Sequence[Pieces], cores: int, options: dict[str, Any]
) -> Work:
    """All cores touch fresh memory, a byte a page: what getting memory costs."""

    def work(watch: Stopwatch, outcome: Outcome) -> None:
        with watch.stamp("allocate"):
            buffer = stack.enter_context(
                allocate(options["bytes"], huge=options["pages"] == "huge")
            )
            touch(buffer, cores)
        outcome.tally.nbytes = buffer.nbytes
        outcome.find_out = lambda: {**options, "huge_kb": page_kind(buffer).huge_kb}

    return work


def nothing(stack: ExitStack, files: Sequence[Pieces], cores: int, options: dict[str, Any]) -> Work:
    """Does nothing: what measuring itself costs."""
    return lambda watch, outcome: None


Maker = Callable[[ExitStack, Sequence[Pieces], int, dict[str, Any]], Work]
READERS: dict[str, Maker] = {
    "direct-ring": ring,
    "cache-ring": ring,
    "owned-read": owned,
    "memory-read": memory_read,
    "memory-copy": memory_copy,
    "first-touch": first_touch,
    "nothing": nothing,
}
OWNERSHIP = {
    "direct-ring": "borrowed",
    "cache-ring": "borrowed",
    "owned-read": "owned",
    "memory-read": "mapped",
}


def _consume(
    pieces: Pieces, start: int, data: memoryview, watch: Stopwatch, outcome: Outcome
) -> None:
    mark = time.perf_counter()
    outcome.tally.add(pieces, start, data)
    watch.spent["consume"] += time.perf_counter() - mark


def _reasons(fell_back: Mapping[str, str]) -> dict[str, Any]:
    return {"fell_back": sorted(set(fell_back.values()))} if fell_back else {}
