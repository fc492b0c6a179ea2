"""The index of a tensorizer file: every tensor's name, dtype, shape and place, as at its beginning.

The format is CoreWeave's (tensorizer 2.12, serialization.py, data versions 1 to 5), little-endian:
magic `|TZR|`, u32 version, 32 bytes of flags, u64 size, 8 unused bytes, u64 tensor count, u64
length of the index, then the index. A dtype is a numpy type ("<f4"), or one of the same width, a
zero byte and torch's name where numpy has no such type ("<V2\\0torch.bfloat16").
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from math import prod

from loaders.checkpoint.dtypes import BY_NAME, TABLE
from loaders.checkpoint.manifest import Problem, TensorSpec
from loaders.checkpoint.regular import opened, read_at
from loaders.checkpoint.text import shown

TENSORS = ".tensors"
_MAGIC = b"|TZR|"
_HEAD = struct.Struct("<5sI32sQ8xQQ")
_PLACE = struct.Struct("<QQQ")
_NEWEST = 5
_ENCRYPTED, _VERSIONED = 1, 2
_LONG_SHAPES = 5
_MAX_INDEX = 256 << 20
_BY_DESCR = {row.numpy: row.name for row in reversed(TABLE) if row.numpy is not None}


class _FileError(ValueError):
    """A fault of the whole file: its problem code and sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def read_tensors_file(path: str, name: str) -> tuple[list[TensorSpec], list[Problem]]:
    """The tensors of one file in the order of their data, and what is wrong with it; no data is
    read. An encrypted file, a newer version, a damaged index are Problems."""
    try:
        with opened(path) as (fd, size):
            head = read_at(fd, 0, _HEAD.size)
            count, length, versioned = _head(head, size)
            index = read_at(fd, _HEAD.size, length)
        tensors = list(_entries(index, count, versioned, name, size))
    except OSError as error:
        return [], [_problem("unreadable-file", error.strerror or str(error), name)]
    except _FileError as error:
        return [], [_problem(error.code, str(error), name)]
    if not tensors:
        return [], [_problem("no-tensors", "it names no tensor", name)]
    return sorted(tensors, key=lambda spec: (spec.offset or 0, spec.nbytes)), []


def _head(head: bytes, size: int) -> tuple[int, int, bool]:
    """(tensor count, index length, whether entries carry a version)."""
    if not head.startswith(_MAGIC):
        raise _FileError("not-weights", f"no tensorizer file (first bytes {head[:8].hex(' ')})")
    if len(head) < _HEAD.size:
        raise _FileError("truncated", f"{size:,} bytes, its header alone has {_HEAD.size}")
    _, version, flag_bytes, _, count, length = _HEAD.unpack(head)
    if not 1 <= version <= _NEWEST:
        text = f"data version {version}, known are 1 to {_NEWEST}: written by a newer tensorizer?"
        raise _FileError("unsupported-version", text)
    flags = int.from_bytes(flag_bytes, "little") if version >= 4 else 0
    if flags & _ENCRYPTED or version == 3:
        raise _FileError(
            "encrypted", "it is encrypted: no loader here has a key; serialise it anew"
        )
    if length > min(_MAX_INDEX, size - _HEAD.size):
        raise _FileError("truncated", f"its index has {length:,} bytes, the file {size:,}: cut off")
    return count, length, bool(flags & _VERSIONED)


def _entries(
    index: bytes, count: int, versioned: bool, file: str, size: int
) -> Iterator[TensorSpec]:
    place = 0
    names: set[str] = set()
    try:
        for _ in range(count):
            version = 1
            if versioned:
                (version,) = struct.unpack_from("<I", index, place)
                place += 4
            (width,) = struct.unpack_from("<H", index, place)
            name, place = _text(index, place + 2, width)
            place += 1  # what the tensor was in its module: parameter, buffer, plain
            dtype, place = _text(index, place + 1, index[place])
            axes, place = index[place], place + 1
            form = f"<{axes}{'Q' if version >= _LONG_SHAPES else 'I'}"
            shape = struct.unpack_from(form, index, place)
            place += struct.calcsize(form)
            _, offset, nbytes = _PLACE.unpack_from(index, place)
            place += _PLACE.size
            if name in names:
                raise _FileError("duplicate-tensor", f"tensor {shown(name)} stands in it twice")
            names.add(name)
            yield _spec(name, dtype, shape, offset, nbytes, file, size)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise _FileError("corrupt-header", f"its index is damaged: {error}") from error


def _text(index: bytes, begin: int, length: int) -> tuple[str, int]:
    if begin + length > len(index):
        raise IndexError(f"a text of {length} bytes at {begin} of {len(index)}")
    return index[begin : begin + length].decode(), begin + length


def _spec(
    name: str, dtype: str, shape: tuple[int, ...], offset: int, nbytes: int, file: str, size: int
) -> TensorSpec:
    where = f"tensor {shown(name)}"
    if name.startswith("\x1e"):
        raise _FileError(
            "nested-names", f"{where}: nested objects have no one name: use a flat one"
        )
    numpy_name, _, torch_name = dtype.partition("\0")
    known = torch_name.removeprefix("torch.") if torch_name else _BY_DESCR.get(numpy_name)
    row = BY_NAME.get(known or "")
    if row is None or row.itemsize is None:
        raise _FileError("unsupported-dtype", f"{where}: unknown dtype {shown(dtype)!r}")
    if nbytes != prod(shape) * row.itemsize:
        what = f"{where}: {row.name} {list(shape)} needs {prod(shape) * row.itemsize} bytes"
        raise _FileError("size-mismatch", f"{what}, its entry has {nbytes}")
    if offset + nbytes > size:
        what = f"{where} ends at byte {offset + nbytes:,} of {size:,}"
        raise _FileError("truncated", f"{what}: the file was cut off; make or copy it again")
    return TensorSpec(
        name=name, dtype=row.name, shape=shape, file=file, offset=offset, nbytes=nbytes
    )


def _problem(code: str, what: str, file: str) -> Problem:
    return Problem(code=code, message=f"{shown(file)}: {what}", file=file)
