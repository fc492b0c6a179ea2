"""From int8 [out, in] as checkpoints store it to what a device multiplies with.

An Ascend NPU wants the transpose [in, out], copied, and then in fractal blocks (FRACTAL_NZ, format
29; vllm-ascend main 182b75ea). CUDA's kernels take the transposed view, which costs nothing.

FRACTAL_NZ of a matrix [rows, columns] has blocks of 16 rows by 32 bytes of columns; blocks go down
the first block column, then down the next; inside a block, row by row. Both sides are padded with
zeros to whole blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import torch

FRACTAL_NZ: Final = 29
"""The number of the format in torch_npu.npu_format_cast."""

_ROWS: Final = 16
_ROW_BYTES: Final = 32

Name = Literal["transpose", "nz", "view"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A layout by name, and who makes it on a device: torch_npu's own cast, or torch's operations
    in its place, which cost what copying costs here and not what the NPU's cast costs there."""

    name: Name
    summary: str
    device: Literal["npu", "cuda"]
    how: str


def layouts(npu: bool) -> tuple[Layout, ...]:
    """All layouts. `npu`: whether the values lie on an NPU."""
    cast = "torch_npu.npu_format_cast" if npu else "plain-torch equivalent of torch_npu's cast"
    return (
        Layout(name="transpose", summary="[in, out], copied", device="npu", how="torch copy"),
        Layout(name="nz", summary="[in, out] in FRACTAL_NZ blocks", device="npu", how=cast),
        Layout(name="view", summary="[in, out], a view", device="cuda", how="torch view, no copy"),
    )


def laid_out(values: torch.Tensor, name: Name, out: torch.Tensor | None = None) -> torch.Tensor:
    """`values` [out, in] in that layout. `out`, of `out_shape`, is written into where the layout
    copies; "view" takes none, nor does "nz" on an NPU, whose cast makes its own memory."""
    if name == "view":
        return values.t()
    if name == "nz" and values.device.type == "npu":
        return _npu_cast(values.t().contiguous())
    if out is None:
        out = values.new_empty(out_shape(tuple(values.shape), name, values.element_size()))
    return transpose(values, out) if name == "transpose" else to_nz(values.t(), out)


def out_shape(shape: tuple[int, ...], name: Name, itemsize: int = 1) -> tuple[int, ...]:
    """The shape that `laid_out` makes of a weight [out, in]."""
    rows, columns = shape
    return (columns, rows) if name != "nz" else nz_shape((columns, rows), itemsize)


def transpose(values: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """The transpose of [out, in], copied into `out` [in, out]."""
    return out.copy_(values.t())


def nz_shape(shape: tuple[int, ...], itemsize: int = 1) -> tuple[int, int, int, int]:
    """The four dimensions of a matrix [rows, columns] in FRACTAL_NZ: block columns, block rows, 16,
    and 32 bytes of elements."""
    rows, columns = shape
    width = _ROW_BYTES // itemsize
    return (-(-columns // width), -(-rows // _ROWS), _ROWS, width)


def to_nz(matrix: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """A matrix [rows, columns] in FRACTAL_NZ, by torch's copies, into `out` of `nz_shape`. The
    matrix may be a view. ValueError if `out` is for another."""
    rows, columns = matrix.shape
    wide, high, height, width = nz_shape((rows, columns), matrix.element_size())
    if tuple(out.shape) != (wide, high, height, width):
        raise ValueError(f"expected an output of {(wide, high, height, width)}, got {out.shape}")
    whole_rows, whole_columns = rows // height, columns // width
    inner = matrix[: whole_rows * height, : whole_columns * width]
    # Splitting dimensions of a view is a view again, so nothing is copied twice.
    blocks = inner.reshape(whole_rows, height, whole_columns, width)
    out[:whole_columns, :whole_rows].copy_(blocks.permute(2, 0, 1, 3))
    if columns % width:
        edge = matrix.new_zeros(high * height, width)
        edge[:rows, : columns % width] = matrix[:, whole_columns * width :]
        out[whole_columns].copy_(edge.view(high, height, width))
    if rows % height:
        edge = matrix.new_zeros(height, wide * width)
        edge[: rows % height, :columns] = matrix[whole_rows * height :]
        out[:, whole_rows].copy_(edge.view(height, wide, width).permute(1, 0, 2))
    return out


def from_nz(blocks: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The matrix [rows, columns] that was laid out, without the padding; a copy."""
    rows, columns = shape
    wide, high, height, width = blocks.shape
    whole = blocks.permute(1, 2, 0, 3).reshape(high * height, wide * width)
    return whole[:rows, :columns].contiguous()


def _npu_cast(matrix: torch.Tensor) -> torch.Tensor:
    import torch_npu

    npu: Any = torch_npu
    cast: torch.Tensor = npu.npu_format_cast(matrix, FRACTAL_NZ)
    return cast
