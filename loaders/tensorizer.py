"""CoreWeave's tensorizer, from files in its own format."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import torch

from loaders.checkpoint.manifest import Checkpoint
from loaders.contract import Loader, Stamp
from loaders.io.library import require_whole, translated
from loaders.io.tensors import by_file, require_dtypes
from loaders.registry import register

_THREADS = "TensorDeserializerCopy"


@register
class Tensorizer(Loader):
    """TensorDeserializer(device="cpu", num_readers=N).read_tensors(): each reader takes a run of
    tensors and fills fresh memory, buffered; they are yielded in the order of the file. Hashes are
    not verified, as by default. `threads` is num_readers."""

    name = "tensorizer"
    summary = "tensorizer: N readers fill fresh memory from a .tensors file (its own format)"
    formats = frozenset({"tensorizer"})
    ownership = "owned"
    threaded = True
    requires = ("tensorizer",)

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[tuple[str, torch.Tensor]]:
        from tensorizer import TensorDeserializer

        require_dtypes(checkpoint)
        with stamp("open"):
            require_whole(checkpoint)  # it wouldn't notice: it doesn't look how much it got
        for file, _ in by_file(checkpoint):
            before = set(threading.enumerate())
            with stamp("open"), translated("tensorizer", file.path):
                library: Any = TensorDeserializer(
                    file.path, device="cpu", lazy_load=True, num_readers=self.threads
                )
            try:
                with closing(library.read_tensors()) as tensors:
                    while True:
                        with translated("tensorizer", file.path):
                            item = next(tensors, None)
                        if item is None:
                            break
                        yield item[2], item[3].detach()
                        del item
            finally:
                library.close()
                _join(set(threading.enumerate()) - before)


def _join(threads: set[threading.Thread]) -> None:
    """close() tells the readers to stop and doesn't wait: they would read on into the next load."""
    for thread in threads:
        if thread.name.startswith(_THREADS):
            thread.join()
