"""Makes a synthetic checkpoint: a scaled shape, its random numbers, its files, all or nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.ground.leftovers import MADE
from bench.measuring.cores import effective_cores
from bench.progress import Progress
from bench.synth.content import stream, take
from bench.synth.files import in_file_order, write_safetensors, write_torch
from bench.synth.place import new_folder, write_json
from bench.synth.scale import scale
from bench.synth.shapes import Shape, ShapeTensor, config_of, expand, load_shape, with_dtype
from loaders.checkpoint.dtypes import torch_dtype
from loaders.system.space import free_bytes

if TYPE_CHECKING:
    import torch

FORMATS = ("safetensors", "pt", "npcache")
_THREADS = 8  # one writer can't use more


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A finished checkpoint: its folder, its shape as scaled, weight files by name with their
    sizes (empty for npcache), number of tensors and their bytes."""

    folder: Path
    shape: Shape
    files: Mapping[str, int]
    tensors: int
    tensor_bytes: int


def make_checkpoint(
    shape_name: str,
    dest: str | os.PathLike[str],
    *,
    size: int | None,
    shards: int,
    format: str,
    dtype: str | None,
    seed: int,
    progress: Progress,
    free: Callable[[Path], int | None] = free_bytes,
) -> Made:
    """Writes a checkpoint of about `size` bytes into the new folder `dest`.

    It is written into a hidden folder beside `dest`, synced and renamed, so that `dest` is whole or
    absent; an existing `dest` is never touched. Memory stays bounded by a few blocks, for npcache
    by the largest tensor.

    Args:
        size: bytes of all tensors, None for the whole shape.
        shards: weight files, cut between tensors so that they are about equally large. An npcache
            has one file a tensor and no shards.
        format: "safetensors", "pt" (zip files of torch.save) or "npcache".
        dtype: one of shapes.DTYPES, None for the shape's own.
        seed: for the random numbers.
        progress: called with bytes done and bytes in all.
        free: free bytes at a folder, None if unknown.

    Raises ShapeError, ScaleError or ValueError for what can't be made, PlaceError and MakeError as
    they say.
    """
    if format not in FORMATS:
        raise ValueError(f"format {format!r} can't be written; these can: {', '.join(FORMATS)}")
    shape = scale(with_dtype(load_shape(shape_name), dtype), size)
    tensors = expand(shape)
    groups = split(tensors, 1 if format == "npcache" else shards)
    total = sum(tensor.nbytes for tensor in tensors)
    how = {
        "made_by": "coldload make",
        "note": "random numbers in the shape of a real model; not weights",
        "shape": shape_name,
        "repo": shape.repo,
        "size": size,
        "format": format,
        "shards": len(groups),
        "dtype": dtype,
        "seed": seed,
        "dims": dict(shape.dims),
    }
    # Headers, names and the index take some hundred bytes a tensor, the rest is block rounding.
    need = total + total // 100 + 1024 * len(tensors)
    with new_folder(dest, need, free) as folder:
        write_json(folder / MADE, how)
        write_json(folder / "config.json", config_of(shape))
        threads = min(effective_cores(), _THREADS)
        pool = ThreadPoolExecutor(threads, thread_name_prefix="coldload-make")
        try:
            blocks = stream(chain.from_iterable(groups), seed, pool, ahead=2 * threads)
            blocks = _reported(blocks, progress, total)
            files = _write_files(folder, format, groups, blocks)
        finally:
            pool.shutdown(cancel_futures=True)
    return Made(
        folder=Path(dest).resolve(),
        shape=shape,
        files=files,
        tensors=len(tensors),
        tensor_bytes=total,
    )


def _write_files(
    folder: Path,
    format: str,
    groups: Sequence[Sequence[ShapeTensor]],
    blocks: Iterator[memoryview],
) -> dict[str, int]:
    if format == "npcache":
        _write_npcache(folder, list(chain.from_iterable(groups)), blocks)
        return {}
    write = write_safetensors if format == "safetensors" else write_torch
    placed = dict(zip(_names(format, len(groups)), groups, strict=True))
    for name, group in placed.items():
        write(folder / name, group, blocks)
    if len(placed) > 1:
        write_json(folder / _index_name(format), _index(placed))
    return {name: (folder / name).stat().st_size for name in placed}


def split(tensors: Sequence[ShapeTensor], shards: int) -> list[list[ShapeTensor]]:
    """The tensors in `shards` runs of about the same bytes, each run in the order of a file.

    Runs, not a perfect packing, because published checkpoints keep a layer together, and whoever
    needs only some layers then needs only some files. ValueError for more shards than tensors.
    """
    if not 1 <= shards <= len(tensors):
        raise ValueError(
            f"{shards} shards asked for, but there are {len(tensors)} tensors and a shard needs "
            f"one: take 1 to {len(tensors)} shards"
        )
    ends = np.cumsum([tensor.nbytes for tensor in tensors])
    cuts = [0]
    for number in range(1, shards):
        ideal = int(ends[-1]) * number // shards
        nearest = int(np.abs(ends - ideal).argmin()) + 1
        # At least one tensor for this shard and for each that follows.
        cuts.append(min(max(nearest, cuts[-1] + 1), len(tensors) - (shards - number)))
    cuts.append(len(tensors))
    return [in_file_order(tensors[a:b]) for a, b in pairwise(cuts)]


def _names(format: str, shards: int) -> list[str]:
    """File names as the engines look for them."""
    stem, suffix = ("model", "safetensors") if format == "safetensors" else ("pytorch_model", "bin")
    if shards == 1:
        return [f"{stem}.{suffix}"]
    return [f"{stem}-{number:05d}-of-{shards:05d}.{suffix}" for number in range(1, shards + 1)]


def _index_name(format: str) -> str:
    name = "model.safetensors" if format == "safetensors" else "pytorch_model.bin"
    return f"{name}.index.json"


def _index(groups: Mapping[str, Sequence[ShapeTensor]]) -> dict[str, object]:
    places = {tensor.name: file for file, group in groups.items() for tensor in group}
    total = sum(tensor.nbytes for group in groups.values() for tensor in group)
    return {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}


def _reported(blocks: Iterator[memoryview], progress: Progress, total: int) -> Iterator[memoryview]:
    done = 0
    progress(done, total)
    for block in blocks:
        done += len(block)
        progress(done, total)
        yield block


def _write_npcache(
    folder: Path, tensors: Sequence[ShapeTensor], blocks: Iterator[memoryview]
) -> None:
    from loaders.checkpoint.npcache_write import write_npcache

    write_npcache(((tensor.name, _assembled(tensor, blocks)) for tensor in tensors), str(folder))


def _assembled(tensor: ShapeTensor, blocks: Iterator[memoryview]) -> torch.Tensor:
    import torch

    raw = np.empty(tensor.nbytes, dtype=np.uint8)
    at = 0
    for block in take(blocks, tensor):
        raw[at : at + len(block)] = block
        at += len(block)
    return torch.from_numpy(raw).view(torch_dtype(tensor.dtype)).reshape(tensor.shape)
