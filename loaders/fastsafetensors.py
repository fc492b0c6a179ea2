"""fastsafetensors on the CPU: its threads read each file into one buffer, past the page cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from loaders.checkpoint.manifest import Checkpoint
from loaders.contract import Loader, Stamp
from loaders.io.errors import LoadError
from loaders.io.library import older_than, require_whole, translated, unknown_code
from loaders.io.tensors import by_file, require_dtypes
from loaders.registry import register

_AHEAD = 1  # files in flight behind the one that is being consumed, as in its own ParallelLoader


@register
class FastSafetensors(Loader):
    """SafeTensorsFileLoader(device="cpu", nogds=True). It opens with O_DIRECT where the file system
    takes that, so it reads the disk again when the files are in memory. From 0.5 on a tensor keeps
    its file's buffer alive; before, tensors died when the loader was closed."""

    name = "fastsafetensors"
    summary = "fastsafetensors, CPU path: whole files by its own threads, O_DIRECT where it can"
    formats = frozenset({"safetensors"})
    ownership = "owned"
    threaded = True
    requires = ("fastsafetensors",)

    @classmethod
    def unusable(cls) -> str | None:
        return older_than("fastsafetensors", "0.5")

    def refuses(self, checkpoint: Checkpoint) -> str | None:
        from fastsafetensors.st_types import DType

        return unknown_code(checkpoint, {known.value for known in DType}, "fastsafetensors")

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[tuple[str, torch.Tensor]]:
        from fastsafetensors import SafeTensorsFileLoader, SingleGroup

        require_dtypes(checkpoint)
        if (reason := self.refuses(checkpoint)) is not None:
            raise LoadError(reason)
        with stamp("open"):
            require_whole(checkpoint)
            library: Any = SafeTensorsFileLoader(
                SingleGroup(), "cpu", nogds=True, max_threads=self.threads
            )
        flying: deque[_Flying] = deque()
        try:
            for file, _ in by_file(checkpoint):
                with stamp("open"):
                    flying.append(_Flying(library, file.path))
                if len(flying) > _AHEAD:
                    yield from flying.popleft().drain()
            while flying:
                yield from flying.popleft().drain()
        finally:
            for one in flying:
                one.close()
            library.close()


class _Flying:
    """One file whose reads have been handed to the library's threads."""

    def __init__(self, library: Any, path: str) -> None:
        self._path = path
        with translated("fastsafetensors", path):
            library.add_filenames({0: [path]})
            self._names: list[str] = library.get_keys()
            self._buffer: Any = library.copy_files_to_device(allow_inflight=True)
        library.reset()

    def drain(self) -> Iterator[tuple[str, torch.Tensor]]:
        try:
            for name in self._names:
                with translated("fastsafetensors", f"{self._path}: tensor {name!r}"):
                    tensor = self._buffer.get_tensor(name)
                yield name, tensor
        finally:
            self.close()

    def close(self) -> None:
        """Waits for reads in flight; the memory goes with its last tensor."""
        self._buffer.close()
