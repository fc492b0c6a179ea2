"""Small synthetic checkpoints for tests, and what to ask of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors.torch import load_file

from bench.synth.shapes import ShapeTensor
from bench.synth.write import Made, make_checkpoint
from loaders.checkpoint.read import open_checkpoint

MIB = 2**20


def quiet(done: int, total: int) -> None:
    pass


def make(
    dest: Path,
    *,
    shape: str = "qwen3-0.6b",
    size: int | None = MIB,
    shards: int = 2,
    form: str = "safetensors",
    dtype: str | None = None,
    seed: int = 0,
) -> Made:
    return make_checkpoint(
        shape, dest, size=size, shards=shards, format=form, dtype=dtype, seed=seed, progress=quiet
    )


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def digests(folder: Path) -> dict[str, str]:
    """Of every tensor's bytes, by name, whatever the format."""
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    for path in sorted(folder.glob("*.bin")):
        tensors |= torch.load(path, weights_only=True)
    found = {
        name: hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy()).hexdigest()
        for name, tensor in tensors.items()
    }
    if (folder / "np").exists():
        checkpoint = open_checkpoint(str(folder), format="npcache")
        paths = {file.name: file.path for file in checkpoint.files}
        for spec in checkpoint.tensors:
            raw = Path(paths[spec.file]).read_bytes()[spec.offset :]
            found[spec.name] = hashlib.sha256(raw).hexdigest()
    return found


def tensor(dtype: str, length: int, name: str = "w") -> ShapeTensor:
    return ShapeTensor(name=name, dtype=dtype, shape=(length,), content=name)
