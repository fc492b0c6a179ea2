"""Pieces as copies of bytes: so many rows of so many bytes, from here to there. Pure arithmetic.

The same values serve a cut in memory (a row's source lies in the tensor) and a cut while reading
(it lies in the file, behind the tensor's offset).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import product
from operator import mul

from loaders.checkpoint.dtypes import itemsize
from loaders.slicing.plan import Parameter, Piece

Shapes = Mapping[str, tuple[int, ...]]


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


def copies_of(number: int, parameter: Parameter, shapes: Shapes) -> list[Copy]:
    """How parameter `number` is filled. `shapes` are the checkpoint's tensors'."""
    return [
        copy
        for piece in parameter.pieces
        for copy in _copies(number, parameter, piece, shapes[piece.tensor])
    ]


def by_tensor(parameters: Sequence[Parameter], shapes: Shapes) -> Iterator[Copy]:
    """How all the parameters are filled, tensor by tensor: what several of them keep of one stands
    together. Made as it is asked for, so that the first copies can be carried out meanwhile."""
    wanted: dict[str, list[tuple[int, Piece]]] = {}
    for number, parameter in enumerate(parameters):
        for piece in parameter.pieces:
            wanted.setdefault(piece.tensor, []).append((number, piece))
    for tensor, pieces in wanted.items():
        shape = shapes[tensor]
        for number, piece in pieces:
            yield from _copies(number, parameters[number], piece, shape)


def _copies(
    number: int, parameter: Parameter, piece: Piece, shape: tuple[int, ...]
) -> Iterator[Copy]:
    if not piece.elements:
        return
    dtype = parameter.dtype
    rows = _rows(piece.shape, piece.dim, piece.start, shape, parameter.shape, dtype)
    at = sum(map(mul, piece.at, _steps(parameter.shape, itemsize(dtype))))
    for source, target in rows.places:
        yield Copy(
            tensor=piece.tensor,
            parameter=number,
            source=source,
            target=at + target,
            length=rows.length,
            source_stride=rows.source_stride,
            target_stride=rows.target_stride,
            count=rows.count,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """What the copies of a piece have in common, and for each of them where its first row begins,
    in the tensor and behind the piece's place in the parameter."""

    length: int
    source_stride: int
    target_stride: int
    count: int
    places: tuple[tuple[int, int], ...]


@lru_cache(maxsize=1024)  # the experts of a layer are cut alike, a thousand of them
def _rows(
    block: tuple[int, ...],
    dim: int,
    start: int,
    shape: tuple[int, ...],
    parameter: tuple[int, ...],
    dtype: str,
) -> _Rows:
    """Bytes are contiguous on both sides from dimension `inner` on; rows run over the one before
    it, and those before that make a copy each."""
    size = itemsize(dtype)
    target_shape = parameter[len(parameter) - len(block or (1,)) :]
    block, shape = block or (1,), shape or (1,)
    source_steps, target_steps = _steps(shape, size), _steps(target_shape, size)
    inner = len(block) - 1
    while inner and block[inner] == shape[inner] == target_shape[inner]:
        inner -= 1
    length = block[inner] * source_steps[inner]
    row = inner - 1
    count = block[row] if row >= 0 else 1
    source_stride = source_steps[row] if row >= 0 else length
    target_stride = target_steps[row] if row >= 0 else length
    if source_stride == target_stride == length:  # rows that follow each other on both sides
        length, count = length * count, 1
        source_stride = target_stride = length
    begin = start * source_steps[dim]
    places = tuple(
        (begin + sum(map(mul, index, source_steps)), sum(map(mul, index, target_steps)))
        for index in product(*(range(count) for count in block[: max(row, 0)]))
    )
    return _Rows(
        length=length,
        source_stride=source_stride,
        target_stride=target_stride,
        count=count,
        places=places,
    )


@cache
def _steps(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Bytes from one element to the next along each dimension of a contiguous tensor."""
    return tuple(math.prod(shape[axis + 1 :]) * size for axis in range(len(shape)))


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
