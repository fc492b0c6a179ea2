"""Writes an npcache: all of it or nothing."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.checkpoint.dtypes import numpy_dtype
from loaders.checkpoint.npcache_dir import FOLDER, INDEX

if TYPE_CHECKING:
    import torch


def write_npcache(tensors: Iterator[tuple[str, torch.Tensor]], folder: str) -> None:
    """Writes `tensors` to `<folder>/np/` in our form (see `npcache_dir`), bit for bit.

    Written beside and renamed, every file synced before: an interrupted write leaves nothing that
    looks like a cache. Holds one tensor at a time. FileExistsError if there is an `np` already;
    ValueError for a name that comes twice; UnsupportedDtypeError for a dtype without whole bytes.
    """
    target = Path(folder, FOLDER)
    if target.exists():
        raise FileExistsError(f"{target} is there already: remove it or choose another folder")
    Path(folder).mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{FOLDER}.", suffix=".incomplete", dir=folder))
    try:
        index: dict[str, dict[str, Any]] = {}
        for number, (name, tensor) in enumerate(tensors):
            if name in index:
                raise ValueError(f"two tensors have the name {name!r}")
            file = f"{number:08d}.npy"
            dtype = str(tensor.dtype).removeprefix("torch.")
            _write_array(beside / file, _array(tensor, dtype))
            index[name] = {"file": file, "dtype": dtype, "shape": list(tensor.shape)}
        with (beside / INDEX).open("w", encoding="utf-8") as out:
            json.dump(index, out, indent=0)
            out.flush()
            os.fsync(out.fileno())
        beside.chmod(0o777 & ~_umask())  # mkdtemp's folders are for one user only
        _sync_folder(beside)
        beside.rename(target)
        _sync_folder(Path(folder))
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _array(tensor: torch.Tensor, dtype: str) -> np.ndarray[Any, np.dtype[Any]]:
    import torch

    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    # numpy_dtype names little-endian types; memory is in the order of this host
    native = np.dtype(numpy_dtype(dtype)).newbyteorder("=")
    # an axis of length 0 or 1 may have any stride, which no view as bytes can be made of
    dense = plain.as_strided((plain.numel(),), (1,))
    raw = dense.view(torch.uint8).numpy()
    return raw.view(native).reshape(tuple(tensor.shape))


def _write_array(path: Path, array: np.ndarray[Any, np.dtype[Any]]) -> None:
    with path.open("xb") as out:
        np.save(out, array, allow_pickle=False)
        out.flush()
        os.fsync(out.fileno())


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
