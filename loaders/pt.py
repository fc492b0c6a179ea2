"""torch.load file by file, as the engines read .bin and .pt."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.torch_file import is_zip
from loaders.contract import Loader, OptionValue, Ownership, Stamp
from loaders.io.torch_load import copied_bytes, drained, load_weights
from loaders.registry import register


@register
class Pt(Loader):
    """`mmap=False` is what engines do (vLLM 0.33, pt_weights_iterator): the whole file is read into
    memory before its first tensor comes out. With `mmap=True` torch.load only opens it."""

    name = "pt"
    summary = "torch.load(weights_only=True) per file, read into memory or mapped"
    formats = frozenset({"pt"})
    ownership: Ownership = "owned"
    options = {"mmap": False}  # noqa: RUF012
    variants = ({"mmap": False}, {"mmap": True})

    def __init__(self, threads: int = 1, **given: OptionValue) -> None:
        super().__init__(threads, **given)
        if self.settings["mmap"]:
            self.ownership = "mapped"

    def memory_bytes(self, checkpoint: Checkpoint) -> int:
        """Training state in a file is read with the weights, and freed with the file's last tensor;
        of a mapped file only what has to be copied counts."""
        unmapped = (file.size for file in checkpoint.files if not self._maps(file.path))
        return sum(unmapped) + copied_bytes(checkpoint)

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[tuple[str, torch.Tensor]]:
        with stamp("open"):
            mapped = {file.path for file in checkpoint.files if self._maps(file.path)}
        if not mapped:
            self.ownership = "owned"
        for file in checkpoint.files:
            if file.path in mapped:
                with stamp("open"):
                    tensors = load_weights(file.path, mmap=True)
            else:
                if self.settings["mmap"]:
                    what = f"{file.name} is a legacy torch.save file"
                    self.note(f"mmap refused: {what}; read without")
                tensors = load_weights(file.path, mmap=False)
            yield from drained(file.path, tensors)

    def _maps(self, path: str) -> bool:
        # torch.load refuses to map the legacy form; the first bytes tell it, not the name
        return bool(self.settings["mmap"]) and is_zip(path)
