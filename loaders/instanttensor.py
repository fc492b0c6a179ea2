"""InstantTensor: direct reads into a device's memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from loaders.checkpoint.manifest import Checkpoint
from loaders.contract import Loader, Stamp
from loaders.io.library import require_whole, translated
from loaders.io.tensors import by_file, require_dtypes
from loaders.registry import register

_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # NVIDIA, ROCm, WSL


@register
class InstantTensor(Loader):
    """instanttensor.safe_open over all files on device 0. 0.2 has no CPU path ("only supports CUDA
    devices for now"). Its tensors are views that die when the buffer is reused, hence copy=True, as
    vLLM 0.33 asks for them."""

    name = "instanttensor"
    summary = "InstantTensor: direct reads into device memory (CUDA only)"
    formats = frozenset({"safetensors"})
    ownership = "device"
    requires = ("instanttensor",)

    @classmethod
    def unusable(cls) -> str | None:
        if torch.version.cuda is None and torch.version.hip is None:
            return f"needs a CUDA device, and torch {torch.__version__} is built without CUDA"
        # Asking CUDA itself would start it, after which no child could be forked to use it.
        if not any(Path(node).exists() for node in _DEVICES):
            return "needs a CUDA device, and there is none"
        return None

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[tuple[str, torch.Tensor]]:
        from instanttensor import safe_open

        require_dtypes(checkpoint)
        paths = [file.path for file, _ in by_file(checkpoint)]
        where = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        with stamp("open"):
            require_whole(checkpoint)
        with stamp("open"), translated("instanttensor", where):
            opened: Any = safe_open(paths, framework="pt", device=0, copy=True)
        with opened:
            tensors = iter(opened.tensors())
            while True:
                with translated("instanttensor", where):
                    item = next(tensors, None)
                if item is None:
                    return
                yield item
                del item
