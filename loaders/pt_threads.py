"""torch.load per file in a thread pool, the engines' multi-thread form for .bin and .pt."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch

from loaders.checkpoint.manifest import Checkpoint
from loaders.contract import Loader, Stamp
from loaders.io.torch_load import copied_bytes, drained, load_weights
from loaders.registry import register


@register
class PtThreads(Loader):
    """All files are submitted at once and consumed as they complete (vLLM 0.33,
    multi_thread_pt_weights_iterator); completed files pile up until their turn comes."""

    name = "pt-threads"
    summary = "torch.load per file in a thread pool, consumed as they complete"
    formats = frozenset({"pt"})
    ownership = "owned"
    threaded = True

    def memory_bytes(self, checkpoint: Checkpoint) -> int:
        """The whole checkpoint, training state included: nothing bounds what is read ahead."""
        return checkpoint.file_bytes + copied_bytes(checkpoint)

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[tuple[str, torch.Tensor]]:
        pool = ThreadPoolExecutor(max_workers=self.threads, thread_name_prefix="torch-load")
        try:
            submitted = {
                pool.submit(load_weights, file.path, mmap=False): file.path
                for file in checkpoint.files
            }
            for future in as_completed(submitted):
                path = submitted.pop(future)
                tensors = future.result()
                del future  # it would keep its dict of tensors
                yield from drained(path, tensors)
        finally:
            # torch.load can't be interrupted: an error must not wait for the other files
            pool.shutdown(wait=False, cancel_futures=True)
