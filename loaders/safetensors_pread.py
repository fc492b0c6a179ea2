"""safetensors 0.8's other way to read: one pread a tensor instead of a mapping."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from safetensors import safe_open

from loaders.checkpoint.manifest import Checkpoint
from loaders.contract import Loader, Stamp
from loaders.io.errors import LoadError, naming
from loaders.io.library import older_than, require_whole, translated
from loaders.io.tensors import by_file, require_dtypes
from loaders.registry import register

_PACKED = "float4_e2m1fn_x2"


@register
class SafetensorsPread(Loader):
    """safe_open(backend="pread"), tensors in the order of their offsets: each is read into fresh
    memory by the calling thread alone. The library has no form of it with threads."""

    name = "safetensors-pread"
    summary = 'safe_open(backend="pread"): one read a tensor into fresh memory, no mapping'
    formats = frozenset({"safetensors"})
    ownership = "owned"
    requires = ("safetensors",)

    @classmethod
    def unusable(cls) -> str | None:
        return older_than("safetensors", "0.8")

    def refuses(self, checkpoint: Checkpoint) -> str | None:
        """0.8.0 maps F4 and can't read it: it makes a view of twice as many elements as it has."""
        packed = next((spec for spec in checkpoint.tensors if spec.dtype == _PACKED), None)
        if packed is None or older_than("safetensors", "0.8.1") is None:
            return None
        return (
            f"{packed.file}: tensor {packed.name!r} is {_PACKED}, which safetensors 0.8.0 maps but "
            "can't read; safetensors-mmap and parallel may"
        )

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[tuple[str, torch.Tensor]]:
        require_dtypes(checkpoint)
        if (reason := self.refuses(checkpoint)) is not None:
            raise LoadError(reason)
        with stamp("open"):
            require_whole(checkpoint)
        for file, specs in by_file(checkpoint):
            dtypes = {spec.name: spec.dtype for spec in specs}
            with stamp("open"), naming(file.path):
                opened: Any = safe_open(file.path, framework="pt", backend="pread")
                names = opened.offset_keys()
            with opened:
                for name in names:
                    where = (
                        f"{file.path}: tensor {name!r} is {dtypes.get(name, 'not in the manifest')}"
                    )
                    with translated("safetensors", where):
                        tensor = opened.get_tensor(name)
                    yield name, tensor
                    del tensor
