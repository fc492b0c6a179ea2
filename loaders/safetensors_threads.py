"""The engines' multi-thread form: `load_file` per shard in a pool."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch
from safetensors.torch import load_file

from loaders.checkpoint.manifest import Checkpoint
from loaders.contract import Loader, Stamp
from loaders.io.errors import naming
from loaders.io.tensors import require_dtypes
from loaders.registry import register


@register
class SafetensorsThreads(Loader):
    """All files are submitted at once and consumed as they complete (vLLM 0.33, weight_utils,
    `enable_multithread_load`). A completed file is a dictionary of views: the threads share the
    opening, not the reading, which falls to whoever touches the tensors."""

    name = "safetensors-threads"
    summary = "load_file per shard in a thread pool (`enable_multithread_load`); makes views only"
    formats = frozenset({"safetensors"})
    ownership = "mapped"
    threaded = True
    requires = ("safetensors",)

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[tuple[str, torch.Tensor]]:
        require_dtypes(checkpoint)
        pool = ThreadPoolExecutor(max_workers=self.threads, thread_name_prefix="load-file")
        try:
            with stamp("open"):
                submitted = {
                    pool.submit(load_file, file.path, device="cpu"): file.path
                    for file in checkpoint.files
                }
                completed = as_completed(submitted)
            while True:
                with stamp("open"):
                    future = next(completed, None)
                if future is None:
                    return
                with naming(submitted.pop(future)):
                    tensors = future.result()
                del future
                while tensors:
                    name = next(iter(tensors))
                    yield name, tensors.pop(name)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
