"""Host tensors over a lazy mapping of a checkpoint's files, as engines have them."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from loaders.checkpoint.manifest import Checkpoint
from loaders.io.errors import LoadError, TruncatedError
from loaders.io.tensors import by_file, tensor_over


@contextmanager
def mapped_tensors(checkpoint: Checkpoint) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """(name, tensor) in the manifest's order. No page was touched yet, except for tensors at
    offsets that their dtype can't have in memory, which are copies. Whether the pages are in the
    page cache is up to the caller.

    LoadError for a tensor that isn't one run of bytes, TruncatedError for a file that is shorter
    than its manifest says, OSError for one that can't be mapped.
    """
    found: list[tuple[str, torch.Tensor]] = []
    with ExitStack() as stack:
        for file, specs in by_file(checkpoint):
            with Path(file.path).open("rb") as opened:
                size = opened.seek(0, 2)
                if size < file.size:
                    raise TruncatedError(file.path, expected=file.size, found=size)
                # Private and writable, because torch wants memory that it may write to.
                view = mmap.mmap(opened.fileno(), file.size, access=mmap.ACCESS_COPY)
            stack.callback(_close, view)
            for spec in specs:
                if spec.offset is None:
                    raise LoadError(f"{file.path}: tensor {spec.name!r} isn't contiguous")
                found.append((spec.name, tensor_over(memoryview(view), spec.offset, spec)))
        yield found
        found.clear()


def _close(view: mmap.mmap) -> None:
    try:
        view.close()
    except BufferError:  # a tensor still lies in it: it goes with the last of them
        return
