"""Pieces as copies of bytes: so many rows of so many bytes, from here to there. Pure arithmetic.

The same values serve a cut in memory (a row's source lies in the tensor) and a cut while reading
(it lies in the file, behind the tensor's offset).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from loaders.checkpoint.dtypes import itemsize
from loaders.slicing.plan import Parameter, Piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """`count` rows of `length` bytes. Row i begins `source + i * source_stride` bytes behind the
    beginning of `tensor` and goes to byte `target + i * target_stride` of parameter number
    `parameter`."""

    tensor: str
    parameter: int
    source: int
    target: int
    length: int
    source_stride: int
    target_stride: int
    count: int

    @property
    def nbytes(self) -> int:
        return self.length * self.count

    @property
    def source_end(self) -> int:
        """The first byte behind the last row's source."""
        return self.source + (self.count - 1) * self.source_stride + self.length

    def rows(self, first: int, last: int) -> Copy:
        """The part of rows `first` to `last` (exclusive)."""
        return replace(
            self,
            source=self.source + first * self.source_stride,
            target=self.target + first * self.target_stride,
            count=last - first,
        )


def copies_of(number: int, parameter: Parameter, shapes: dict[str, tuple[int, ...]]) -> list[Copy]:
    """How parameter `number` is filled. `shapes` are the checkpoint's tensors'."""
    return [
        _merged(copy)
        for piece in parameter.pieces
        for copy in _copies(number, parameter, piece, shapes[piece.tensor])
        if copy.nbytes
    ]


def _copies(
    number: int, parameter: Parameter, piece: Piece, shape: tuple[int, ...]
) -> Iterator[Copy]:
    """Bytes are contiguous on both sides from dimension `inner` on; rows run over the one before
    it, and those before that make a copy each."""
    size = itemsize(parameter.dtype)
    block = piece.shape or (1,)
    source_shape = shape or (1,)
    target_shape = parameter.shape[len(parameter.shape) - len(block) :]
    source_steps = _steps(source_shape, size)
    target_steps = _steps(target_shape, size)
    begin = piece.start * source_steps[piece.dim]
    first = sum(at * step for at, step in zip(piece.at, _steps(parameter.shape, size), strict=True))
    inner = len(block) - 1
    while inner and block[inner] == source_shape[inner] == target_shape[inner]:
        inner -= 1
    length = block[inner] * source_steps[inner]
    row = inner - 1
    for index in product(*(range(count) for count in block[: max(row, 0)])):
        yield Copy(
            tensor=piece.tensor,
            parameter=number,
            source=begin + sum(i * step for i, step in zip(index, source_steps, strict=False)),
            target=first + sum(i * step for i, step in zip(index, target_steps, strict=False)),
            length=length,
            source_stride=source_steps[row] if row >= 0 else length,
            target_stride=target_steps[row] if row >= 0 else length,
            count=block[row] if row >= 0 else 1,
        )


def _steps(shape: Sequence[int], size: int) -> list[int]:
    """Bytes from one element to the next along each dimension of a contiguous tensor."""
    return [math.prod(shape[axis + 1 :]) * size for axis in range(len(shape))]


def _merged(copy: Copy) -> Copy:
    """Rows that follow each other on both sides are one (a tensor with a single column)."""
    if copy.count > 1 and copy.source_stride == copy.target_stride == copy.length:
        return replace(copy, length=copy.nbytes, count=1)
    return copy


def padding_of(parameter: Parameter) -> tuple[int, int] | None:
    """The bytes [from, to) of a parameter that no tensor fills, at its end; None without any.
    ValueError if what is unfilled isn't its end: no rule leaves holes."""
    if not parameter.padding:
        return None
    size = itemsize(parameter.dtype)
    end = math.prod(parameter.shape) * size
    begin = end - parameter.padding * size
    steps = _steps(parameter.shape, size)
    reach = max(
        (
            sum(at * step for at, step in zip(piece.at, steps, strict=True))
            + _extent(piece, parameter, steps)
            for piece in parameter.pieces
        ),
        default=0,
    )
    if reach > begin:
        raise ValueError(f"{parameter.name}: its padding isn't at its end")
    return begin, end


def _extent(piece: Piece, parameter: Parameter, steps: Sequence[int]) -> int:
    """Bytes of the parameter from a piece's first element to behind its last one."""
    sizes = (1,) * (len(parameter.shape) - len(piece.shape)) + piece.shape
    size = itemsize(parameter.dtype)
    return sum((count - 1) * step for count, step in zip(sizes, steps, strict=True)) + size
