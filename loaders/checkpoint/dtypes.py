"""The one table of element types: torch's name, the safetensors code, width, numpy's view.

Nothing here imports torch: a manifest is read without it. `torch_dtype` looks it up when a loader
asks, because an installed torch may lack a type that a file holds (uint16 before 2.3, E8M0 before
2.7, F4 before 2.8).

Types narrower than a byte. safetensors states the *logical* shape: F4 [2, 8] is 16 values of
4 bits, 8 bytes. torch has no 4-bit element; its `float4_e2m1fn_x2` is a byte that holds two, and
the safetensors library hands such a tensor out as shape (2, 4). The manifest follows what a loader
yields: dtype "float4_e2m1fn_x2", shape (2, 4), nbytes 8. So for every loadable type
`prod(shape) * itemsize(dtype) == nbytes`. F6 has neither a torch dtype nor a packing rule in the
library: the manifest keeps its logical shape, and it can't be loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementType:
    """One row. `bits` is the width of one value as the file's shape counts them, `packed` how many
    of them make one torch element, `numpy` a little-endian numpy type of the same width as the
    torch element (an unsigned integer where numpy has no such type), None where there is none."""

    name: str
    code: str | None
    bits: int
    numpy: str | None
    packed: int = 1

    @property
    def itemsize(self) -> int | None:
        """Bytes of one torch element; None where the type has no whole-byte element."""
        bits = self.bits * self.packed
        return bits // 8 if bits % 8 == 0 else None


def _row(name: str, code: str | None, bits: int, numpy: str | None, packed: int = 1) -> ElementType:
    return ElementType(name=name, code=code, bits=bits, numpy=numpy, packed=packed)


# Codes and widths: safetensors 0.8 (Dtype). Those without a code occur in torch files only.
TABLE: tuple[ElementType, ...] = (
    _row("bool", "BOOL", 8, "|b1"),
    _row("uint8", "U8", 8, "|u1"),
    _row("int8", "I8", 8, "|i1"),
    _row("uint16", "U16", 16, "<u2"),
    _row("int16", "I16", 16, "<i2"),
    _row("uint32", "U32", 32, "<u4"),
    _row("int32", "I32", 32, "<i4"),
    _row("uint64", "U64", 64, "<u8"),
    _row("int64", "I64", 64, "<i8"),
    _row("float16", "F16", 16, "<f2"),
    _row("bfloat16", "BF16", 16, "<u2"),
    _row("float32", "F32", 32, "<f4"),
    _row("float64", "F64", 64, "<f8"),
    _row("complex32", None, 32, "<u4"),
    _row("complex64", "C64", 64, "<c8"),
    _row("complex128", None, 128, "<c16"),
    _row("float8_e4m3fn", "F8_E4M3", 8, "|u1"),
    _row("float8_e5m2", "F8_E5M2", 8, "|u1"),
    _row("float8_e4m3fnuz", "F8_E4M3FNUZ", 8, "|u1"),
    _row("float8_e5m2fnuz", "F8_E5M2FNUZ", 8, "|u1"),
    _row("float8_e8m0fnu", "F8_E8M0", 8, "|u1"),
    _row("float4_e2m1fn_x2", "F4", 4, "|u1", packed=2),
    _row("float6_e2m3", "F6_E2M3", 6, None),
    _row("float6_e3m2", "F6_E3M2", 6, None),
)
BY_NAME: dict[str, ElementType] = {row.name: row for row in TABLE}
BY_CODE: dict[str, ElementType] = {row.code: row for row in TABLE if row.code is not None}


class UnsupportedDtypeError(ValueError):
    """A dtype that the installed torch (or this table) doesn't have."""


def code(name: str) -> str:
    """The safetensors code of a dtype name ("bfloat16" -> "BF16"). UnsupportedDtypeError if the
    format has none."""
    row = BY_NAME.get(name)
    if row is None or row.code is None:
        known = ", ".join(BY_CODE[key].name for key in BY_CODE)
        raise UnsupportedDtypeError(f"safetensors can't hold dtype {name!r}; it holds: {known}")
    return row.code


def itemsize(name: str) -> int:
    """Bytes of one torch element of that dtype. UnsupportedDtypeError if it has no such element."""
    row = BY_NAME.get(name)
    size = None if row is None else row.itemsize
    if size is None:
        raise UnsupportedDtypeError(f"dtype {name!r} has no element of whole bytes")
    return size


def numpy_dtype(name: str) -> str:
    """The numpy type (little-endian, same width) with which the raw bytes can be viewed: "<u2" for
    bfloat16. UnsupportedDtypeError if there is none."""
    row = BY_NAME.get(name)
    if row is None or row.numpy is None:
        raise UnsupportedDtypeError(f"dtype {name!r} has no numpy type of its width")
    return row.numpy


def supported(name: str) -> bool:
    """Whether the installed torch has that dtype. Imports torch."""
    import torch

    return name in BY_NAME and isinstance(getattr(torch, name, None), torch.dtype)


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of that name. Imports torch. UnsupportedDtypeError, naming the dtype and
    torch's version, where the installed torch has none."""
    import torch

    found = getattr(torch, name, None) if name in BY_NAME else None
    if not isinstance(found, torch.dtype):
        raise UnsupportedDtypeError(
            f"dtype {name!r} is in the checkpoint, but the installed torch {torch.__version__} "
            "has no such dtype; a newer torch may"
        )
    return found
