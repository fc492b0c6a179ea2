"""The npcache format: one .npy file a tensor in `<folder>/np/`, with `weight_names.json`.

Two forms are read. The engines' (vLLM 0.33, np_cache_weights_iterator): a JSON list of names, each
file named exactly as its tensor. Ours: an object, name -> {"file", "dtype", "shape"}, files named
by number, so that no tensor's name ever becomes a path, and dtypes that numpy lacks (bfloat16,
float8) stored bit for bit as unsigned integers of the same width.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from loaders.checkpoint import strict_json
from loaders.checkpoint.dtypes import UnsupportedDtypeError, numpy_dtype
from loaders.checkpoint.manifest import Problem, TensorSpec, WeightFile
from loaders.checkpoint.npy_header import NpyError, NpyHeader, read_npy_header
from loaders.checkpoint.regular import opened, read_at
from loaders.checkpoint.text import listed, shown

FOLDER = "np"
INDEX = "weight_names.json"
_MAX_INDEX = 256 << 20


def read_npcache(folder: str) -> tuple[list[WeightFile], list[TensorSpec], list[Problem]]:
    """The files and tensors of `<folder>/np/` and what is wrong there, from the index and the .npy
    headers; no data is read. File names are relative to `folder` ("np/00000000.npy").

    Every fault is a Problem; an index that can't be read is one, too. A name that isn't a plain
    file name is never opened.
    """
    where = f"{FOLDER}/{INDEX}"
    index, problems = _index(Path(folder, FOLDER, INDEX), where)
    files: dict[str, WeightFile] = {}
    tensors: list[TensorSpec] = []
    for name, entry in index.items():
        file = name if entry is None else entry["file"]
        unsafe = _unsafe(file)
        if unsafe is not None:
            what = f"tensor {shown(name)}: its file name {shown(file)!r} {unsafe}; it is not opened"
            problems.append(_problem("unsafe-path", what, where, name))
            continue
        try:
            header, path, size = _header(Path(folder, FOLDER), file, plain=entry is None)
            dtype = header.dtype if entry is None else _checked(header, entry)
        except NpyError as error:
            what = f"tensor {shown(name)}: {error}"
            problems.append(_problem(error.code, what, f"{FOLDER}/{file}", name))
            continue
        except OSError as error:
            what = f"tensor {shown(name)}: {error.strerror or error}"
            code = "missing-file" if isinstance(error, FileNotFoundError) else "unreadable-file"
            problems.append(_problem(code, what, f"{FOLDER}/{file}", name))
            continue
        own = f"{FOLDER}/{path.name}"
        files[own] = WeightFile(name=own, path=str(path), size=size)
        tensors.append(
            TensorSpec(
                name=name,
                dtype=dtype,
                shape=header.shape,
                file=own,
                offset=None if header.fortran else header.start,
                nbytes=header.nbytes,
            )
        )
    return list(files.values()), tensors, problems


def _index(path: Path, where: str) -> tuple[dict[str, dict[str, Any] | None], list[Problem]]:
    """Name -> entry (None in the engines' form), and the faults of the index itself."""
    try:
        with opened(str(path)) as (fd, size):
            raw = read_at(fd, 0, min(size, _MAX_INDEX + 1))
        if len(raw) > _MAX_INDEX:
            raise strict_json.StrictJsonError(f"{size:,} bytes are no list of tensor names")
        value = strict_json.loads(raw)
    except OSError as error:
        code = "missing-file" if isinstance(error, FileNotFoundError) else "unreadable-file"
        return {}, [_problem(code, error.strerror or str(error), where)]
    except strict_json.StrictJsonError as error:
        return {}, [_problem("bad-index", f"no valid JSON: {error}; write the cache again", where)]
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        twice = {name for name, times in Counter(value).items() if times > 1}
        entries: dict[str, dict[str, Any] | None] = dict.fromkeys(value)
    elif isinstance(value, dict):
        twice = set(value.keys_repeated) if isinstance(value, strict_json.Repeated) else set()
        bad = [name for name, entry in value.items() if not _is_entry(entry)]
        if bad:
            what = f'expected {{"file", "dtype", "shape"}} for each name; not so: {listed(bad)}'
            return {}, [_problem("bad-index", what, where)]
        entries = dict(value)
    else:
        what = "expected a list of tensor names or an object by name; write the cache again"
        return {}, [_problem("bad-index", what, where)]
    problems = []
    if twice:
        what = f"names that stand in it more than once: {listed(sorted(twice))}"
        problems.append(_problem("duplicate-tensor", what, where))
    if not entries:
        problems.append(_problem("no-tensors", "it names no tensor", where))
    return entries, problems


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("file"), str)
        and isinstance(entry.get("dtype"), str)
        and isinstance(entry.get("shape"), list)
        and all(type(extent) is int for extent in entry["shape"])
    )


def _unsafe(file: str) -> str | None:
    """Why a name must not be joined to a folder, or None if it is a plain file name."""
    if file in ("", ".", "..") or "/" in file or "\\" in file:
        return "leads out of the folder or into another"
    if not file.isprintable():
        return "has control characters in it"
    if len(os.fsencode(file)) > 255:
        return "is longer than 255 bytes"
    if file == INDEX:
        return "is that of the index"
    return None


def _header(folder: Path, file: str, *, plain: bool) -> tuple[NpyHeader, Path, int]:
    """Header, path and size of a tensor's file. The engines' form has no suffix; a cache that was
    written by np.save with a path has one."""
    path = folder / file
    if plain and not path.exists() and (folder / f"{file}.npy").exists():
        path = folder / f"{file}.npy"
    with opened(str(path)) as (fd, size):
        return read_npy_header(fd, size), path, size


def _checked(header: NpyHeader, entry: dict[str, Any]) -> str:
    """The true dtype of a tensor of our form, after its file was found to fit the index."""
    try:
        expected = numpy_dtype(entry["dtype"])
    except UnsupportedDtypeError as error:
        raise NpyError("unsupported-dtype", str(error)) from error
    if header.descr.lstrip("<|") != expected.lstrip("<|"):
        raise NpyError(
            "dtype-mismatch",
            f"the index says {entry['dtype']} (stored as {expected}), its file holds "
            f"{header.descr}: write the cache again",
        )
    if header.shape != tuple(entry["shape"]):
        raise NpyError(
            "shape-mismatch",
            f"the index says shape {entry['shape']}, its file {list(header.shape)}: write the "
            "cache again",
        )
    return str(entry["dtype"])


def _problem(code: str, what: str, file: str, tensor: str | None = None) -> Problem:
    return Problem(code=code, message=f"{shown(file)}: {what}", file=file, tensor=tensor)
