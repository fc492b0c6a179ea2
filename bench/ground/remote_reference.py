"""The reference of a checkpoint in a store: what its tensors must hold, read once, untimed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any

import xxhash

from bench.measuring.consume import WRAP, placed_sum
from bench.measuring.verify import BLOCK, Reference
from bench.progress import Progress
from loaders.checkpoint.manifest import Checkpoint, TensorSpec
from loaders.store.ranges import Ranges

EVERY = 0.5
"""Seconds between two words of progress."""


def read_remote_reference(
    checkpoint: Checkpoint, threads: int = 16, progress: Progress = lambda done, total: None
) -> Reference:
    """Digest and sum of every tensor, by range requests of up to 8 MiB, `threads` tensors at a
    time. The whole payload comes over the network once; `progress` is told bytes done and in all,
    by the calling thread.
    StoreError."""
    if not checkpoint.files:
        return Reference(digests={}, sums={})
    paths = {file.name: file.path for file in checkpoint.files}
    ranges = Ranges(checkpoint.files[0].path, concurrency=threads)
    own = threading.local()
    arrived: deque[int] = deque([0])  # appended to by all threads, which needs no lock

    def of(tensor: TensorSpec) -> tuple[str, int]:
        if not hasattr(own, "room"):
            own.room = memoryview(bytearray(BLOCK))
        assert tensor.offset is not None
        total, hasher = 0, xxhash.xxh3_128()
        for at in range(0, tensor.nbytes, BLOCK):
            block: memoryview = own.room[: min(BLOCK, tensor.nbytes - at)]
            ranges.fill(paths[tensor.file], tensor.offset + at, block)
            arrived.append(len(block))
            total += placed_sum(block, at)
            hasher.update(block)
        return hasher.hexdigest(), total % WRAP

    try:
        with ThreadPoolExecutor(max_workers=threads) as pool:
            futures = [(tensor.name, pool.submit(of, tensor)) for tensor in checkpoint.tensors]
            try:
                _wait_for([future for _, future in futures], arrived, checkpoint, progress)
                found = {name: future.result() for name, future in futures}
            except BaseException:
                ranges.stop()
                pool.shutdown(wait=True, cancel_futures=True)
                raise
    finally:
        ranges.close()
    return Reference(
        digests={name: one[0] for name, one in found.items()},
        sums={name: one[1] for name, one in found.items()},
    )


def _wait_for(
    futures: Sequence[Future[Any]], arrived: deque[int], checkpoint: Checkpoint, progress: Progress
) -> None:
    """Until all are done or one has failed, telling meanwhile what has arrived."""
    done, total = 0, checkpoint.tensor_bytes
    waiting: set[Future[Any]] = set(futures)
    while waiting:
        ended, waiting = wait(waiting, timeout=EVERY, return_when=FIRST_EXCEPTION)
        while arrived:
            done += arrived.popleft()
        progress(min(done, total), total)
        if any(future.exception() is not None for future in ended):
            return
