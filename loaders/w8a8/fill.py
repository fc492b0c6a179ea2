"""Files -> slices in host memory: read and slice in turns, each under its stamp."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final

import torch

from loaders.checkpoint.dtypes import itemsize, torch_dtype
from loaders.checkpoint.manifest import Checkpoint, TensorSpec
from loaders.io.buffers import allocate
from loaders.slicing.execute import carry_out, raw, zero_padding
from loaders.slicing.fetch import fetches
from loaders.slicing.plan import Parameter, Piece
from loaders.w8a8.plan import first_row, rows_of
from loaders.w8a8.windows import WINDOW, Windows

Stamp = Callable[[str], AbstractContextManager[None]]
"""Times a stage of the thread that loads: read, slice, quantise, ..."""


def fresh(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Memory on the host of which no page is there yet, from a page on."""
    empty = torch.empty(tuple(shape), dtype=dtype, device="meta")
    if not empty.nbytes:
        return torch.empty(tuple(shape), dtype=dtype)
    whole = torch.frombuffer(allocate(empty.nbytes).view(), dtype=torch.uint8)
    return whole[: empty.nbytes].view(dtype).view(tuple(shape))


def fill(
    windows: Windows,
    checkpoint: Checkpoint,
    parameters: Sequence[Parameter],
    targets: Sequence[torch.Tensor],
    stamp: Stamp,
    *,
    threads: int,
) -> None:
    """Fills `targets`, contiguous on the host, one for each parameter."""
    paths = {file.name: file.path for file in checkpoint.files}
    into = [raw(target) for target in targets]
    for fetch in fetches(checkpoint, parameters):
        for start in range(0, fetch.length, WINDOW):
            length = min(WINDOW, fetch.length - start)
            with stamp("read"):
                data = windows.read(paths[fetch.file], fetch.offset + start, length)
            with stamp("slice"):
                copies = list(fetch.within(start, length))
                carry_out(copies, {one.tensor: data for one in copies}, into, threads=threads)
    with stamp("slice"):
        zero_padding(parameters, into)


def wide(parameter: Parameter) -> tuple[int, int]:
    """The shape [rows, columns + 1] that `fill_within_rows` fills."""
    return rows_of(parameter), parameter.shape[-1] + 1


def fill_within_rows(
    windows: Windows,
    checkpoint: Checkpoint,
    parameter: Parameter,
    target: torch.Tensor,
    stamp: Stamp,
) -> None:
    """A part of every row, and in one more column behind it the largest magnitude of the full row:
    a quantiser of whole rows then finds the full rows' scales by itself, with all of its care for
    zeros, small values and NaN. `target` is of `wide`."""
    specs = {spec.name: spec for spec in checkpoint.tensors}
    for piece in parameter.pieces:
        rows = target[first_row(parameter, piece) :]
        _fill_piece(windows, checkpoint, piece, specs[piece.tensor], rows, stamp)


def _fill_piece(
    windows: Windows,
    checkpoint: Checkpoint,
    piece: Piece,
    spec: TensorSpec,
    target: torch.Tensor,
    stamp: Stamp,
) -> None:
    path = checkpoint.file(spec.file).path
    if spec.offset is None:
        raise ValueError(f"{spec.file}: tensor {spec.name!r} isn't contiguous in the file")
    rows, columns = spec.shape
    row_bytes = columns * itemsize(spec.dtype)
    at_once = max(WINDOW // row_bytes, 1)
    for start in range(0, rows, at_once):
        stop = min(start + at_once, rows)
        with stamp("read"):
            data = windows.read(path, spec.offset + start * row_bytes, (stop - start) * row_bytes)
        full = torch.from_numpy(data).view(torch_dtype(spec.dtype)).view(stop - start, columns)
        with stamp("slice"):
            target[start:stop, :-1].copy_(full[:, piece.start : piece.stop])
        with stamp("quantise"):
            largest_of_rows(full, target[start:stop, -1:])


_BITS: Final[Mapping[torch.dtype, tuple[torch.dtype, int]]] = {
    torch.bfloat16: (torch.int16, 0x7FFF),
    torch.float16: (torch.int16, 0x7FFF),
    torch.float32: (torch.int32, 0x7FFFFFFF),
}
"""Floats without their sign are ordered as integers are, NaN above all, and torch finds the largest
integer of a row several times as fast as the largest float."""

_BAND: Final = 1 << 19
"""Elements looked at together: they and their scratch stay in the cores' caches."""


def largest_of_rows(weight: torch.Tensor, out: torch.Tensor) -> None:
    """The largest magnitude of each row of [rows, columns], exactly, into `out` [rows, 1] of the
    same dtype; NaN where a row has one."""
    kind, mask = _BITS[weight.dtype]
    rows, columns = weight.shape
    band = max(1, min(rows, _BAND // max(columns, 1)))
    scratch = torch.empty(band, columns, dtype=kind)
    for start in range(0, rows, band):
        part = weight[start : start + band].view(kind)
        bits = torch.bitwise_and(part, mask, out=scratch[: len(part)])
        out[start : start + band] = bits.amax(dim=1, keepdim=True).view(weight.dtype)
