"""torch.load as the loaders use it, and the plain tensors in what it returns."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import torch

from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.weight_dict import WeightDictError, find_weights
from loaders.io.errors import LoadError, naming


def load_weights(path: str, *, mmap: bool) -> dict[str, torch.Tensor]:
    """The weights of one torch.save file by name, as `find_weights` picks them, on the CPU
    whatever device they were saved from. LoadError that names the file.

    `path` is a str because torch.load(mmap=True) of some versions refuses a Path. With `mmap` the
    tensors are private mappings of the file and no byte of them has been read yet.
    """
    try:
        with naming(path):
            saved = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except (pickle.UnpicklingError, EOFError, AssertionError, TypeError, IndexError) as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise LoadError(
            f"{path}: {type(error).__name__}: {first}; `coldload check` says what is wrong with it"
        ) from error
    try:
        return find_weights(saved, torch.Tensor).tensors
    except WeightDictError as error:
        raise LoadError(f"{path}: {error}") from error


def drained(path: str, tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields and forgets one tensor after another, each contiguous: a strided or conjugate view
    becomes a copy, everything else stays a view of its storage (tied tensors share theirs)."""
    while tensors:
        name = next(iter(tensors))
        tensor = tensors.pop(name).detach()
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
            raise LoadError(f"{path}: tensor {name!r} is no plain array of numbers")
        if tensor.device.type != "cpu":
            raise LoadError(f"{path}: tensor {name!r} is on {tensor.device}, without data")
        yield name, _dense(tensor)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous, also in its strides: torch lets an axis of length 1 (or 0) have any, calls that
    contiguous and then can't view it as bytes."""
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    if plain.dim() == 0 or plain.stride(-1) == 1:
        return plain
    steps = [1]
    for extent in reversed(plain.shape[1:]):
        steps.insert(0, steps[0] * max(extent, 1))
    return plain.as_strided(plain.shape, steps)


def copied_bytes(checkpoint: Checkpoint) -> int:
    """Bytes of the tensors that `drained` copies."""
    return sum(spec.nbytes for spec in checkpoint.tensors if spec.offset is None)
