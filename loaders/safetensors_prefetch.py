"""The engines' `prefetch` strategy: reader threads warm the page cache ahead of the mapping."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import ClassVar

import torch

from loaders.checkpoint.manifest import Checkpoint
from loaders.contract import Loader, OptionValue, Stamp
from loaders.io.readers import OpenFile
from loaders.registry import register
from loaders.safetensors_mmap import map_tensors
from loaders.system.memory import available

_SHARE = 0.9  # of the available memory: what vLLM 0.33 takes for "the checkpoint fits"


@register
class SafetensorsPrefetch(Loader):
    """Each thread reads a file at a time from end to end and throws the bytes away, while the main
    thread goes on with the lazy mapping and doesn't wait (vLLM 0.33, weight_utils). The engine lets
    late readers run on; here they end with the iterator, or they would read into the next
    measurement."""

    name = "safetensors-prefetch"
    summary = "threads read files to warm the page cache while they are mapped (`prefetch`)"
    formats = frozenset({"safetensors"})
    ownership = "mapped"
    options: ClassVar[Mapping[str, OptionValue]] = {"block_mib": 16}
    threaded = True
    requires = ("safetensors",)

    def __init__(self, threads: int = 1, **given: OptionValue) -> None:
        super().__init__(threads, **given)
        self.require_positive("block_mib")

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[tuple[str, torch.Tensor]]:
        memory = available()
        if checkpoint.file_bytes > _SHARE * memory.nbytes:
            # Each page read ahead would push out one that was read before it.
            self.note(
                f"nothing prefetched: {checkpoint.file_bytes} bytes of files exceed "
                f"{_SHARE:.0%} of {memory.nbytes} available ({memory.bound})"
            )
            yield from map_tensors(checkpoint, stamp)
            return
        stop = Event()
        block = int(self.settings["block_mib"]) << 20
        pool = ThreadPoolExecutor(max_workers=self.threads, thread_name_prefix="prefetch")
        reads = [pool.submit(read_away, file.path, block, stop) for file in checkpoint.files]
        try:
            yield from map_tensors(checkpoint, stamp)
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            self._note_failures(reads)

    def _note_failures(self, reads: list[Future[None]]) -> None:
        """A file that can't be read ahead can perhaps be mapped; if not, the mapping says so."""
        for read in reads:
            error = None if read.cancelled() else read.exception()
            if error is not None:
                self.note(f"prefetch failed: {error}")


def read_away(path: str, block: int, stop: Event) -> None:
    scratch = bytearray(block)
    position = 0
    with OpenFile(path) as file:
        while not stop.is_set() and (got := os.preadv(file.fd, [scratch], position)):
            position += got
