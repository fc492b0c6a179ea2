"""The header of a .npy file (NumPy format versions 1.0 to 3.0), without unpickling anything."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass

from loaders.checkpoint.dtypes import TABLE
from loaders.checkpoint.regular import read_at
from loaders.checkpoint.text import shown

_MAGIC = b"\x93NUMPY"
_MAX_HEADER = 10_000  # numpy's own limit for files that aren't trusted
# The first dtype of each numpy type is the one that numpy has by itself; "<u2" is uint16, not the
# bfloat16 that is stored so.
_BY_DESCR = {row.numpy: row.name for row in reversed(TABLE) if row.numpy is not None}
_BY_DESCR |= {descr.replace("|", "<"): name for descr, name in _BY_DESCR.items()}


class NpyError(ValueError):
    """Not a .npy file that can be measured: a problem's code and its sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class NpyHeader:
    """`descr` is a little-endian numpy type ("<u2"), `dtype` the torch name of it; `start` is the
    offset of the data, `fortran` says that the first axis runs fastest."""

    descr: str
    dtype: str
    shape: tuple[int, ...]
    fortran: bool
    start: int
    nbytes: int


def read_npy_header(fd: int, size: int) -> NpyHeader:
    """The header of an open .npy file of `size` bytes, whose data must end where the file ends.
    NpyError if it is damaged, truncated, of another byte order or of Python objects."""
    if size == 0:
        raise NpyError("empty-file", "an empty file (0 bytes), not a .npy array")
    head = read_at(fd, 0, 12)
    if head[:6] != _MAGIC or len(head) < 10:
        raise NpyError("not-weights", f"no .npy array (first bytes {head[:8].hex(' ')})")
    if head[6] not in (1, 2, 3):
        raise NpyError("unsupported-npy", f".npy version {head[6]}.{head[7]}; known are 1 to 3")
    wide = head[6] > 1
    start = (12 if wide else 10) + int.from_bytes(head[8:12] if wide else head[8:10], "little")
    if start > _MAX_HEADER or start > size:
        raise NpyError(
            "corrupt-header", f"its .npy header would end at byte {start:,} of {size:,}: damaged"
        )
    raw = read_at(fd, 0, start)[12 if wide else 10 :]
    descr, fortran, shape = _fields(raw.decode("utf-8" if head[6] == 3 else "latin-1", "replace"))
    if not isinstance(descr, str):
        raise NpyError("unsupported-dtype", "an array of records, not of numbers")
    dtype = _dtype(descr)
    nbytes = _width(descr) * math.prod(shape)
    if start + nbytes != size:
        raise NpyError(
            "truncated-file" if start + nbytes > size else "trailing-bytes",
            f"{descr} {list(shape)} after {start} bytes of header needs {start + nbytes:,} bytes, "
            f"the file has {size:,}: write the cache again",
        )
    # an array that runs the same in both orders isn't strided
    fortran = fortran and sum(extent != 1 for extent in shape) > 1 and nbytes > 0
    return NpyHeader(
        descr=descr, dtype=dtype, shape=shape, fortran=fortran, start=start, nbytes=nbytes
    )


def _fields(text: str) -> tuple[object, bool, tuple[int, ...]]:
    try:
        fields = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise NpyError("corrupt-header", f"its .npy header is damaged: {shown(text)}") from error
    if not isinstance(fields, dict) or fields.keys() != {"descr", "fortran_order", "shape"}:
        raise NpyError("corrupt-header", f"its .npy header is damaged: {shown(text)}")
    fortran, shape = fields["fortran_order"], fields["shape"]
    if (
        not isinstance(fortran, bool)
        or not isinstance(shape, tuple)
        or not all(type(extent) is int and 0 <= extent < 2**63 for extent in shape)
    ):
        raise NpyError("corrupt-header", f"its .npy header is damaged: {shown(text)}")
    return fields["descr"], fortran, shape


def _dtype(descr: str) -> str:
    if descr in _BY_DESCR:
        return _BY_DESCR[descr]
    if descr.startswith(">") and "<" + descr[1:] in _BY_DESCR:
        raise NpyError(
            "byte-order",
            f"big-endian data ({descr}); a measurement would include swapping every byte: write "
            "the cache again on this host",
        )
    if descr.lstrip("|<>=").startswith("O"):
        raise NpyError(
            "unsafe-pickle",
            "an array of Python objects, which would execute code on load; it is not opened",
        )
    hint = ""
    if descr.lstrip("|<>=").startswith("V"):
        hint = " (bfloat16 or float8 saved as raw bytes? their type is lost)"
    raise NpyError("unsupported-dtype", f"numpy type {shown(descr)}{hint} is no number of torch's")


def _width(descr: str) -> int:
    return int(descr[2:])
