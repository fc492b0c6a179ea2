"""What one rank keeps: values that say which block of which tensor goes where in which parameter.

How to carry a plan out, with `source` a tensor of the checkpoint and `target` the rank's parameter:

    for parameter in plan.parameters:
        target = empty(parameter.shape, parameter.dtype)     # zeros, where parameter.padding > 0
        for piece in parameter.pieces:
            block = source.narrow(piece.dim, piece.start, piece.stop - piece.start)
            target[piece.window(parameter)] = block

A 0-dimensional source is taken whole (its piece has dim 0, start 0, stop 1). A block has the
source's dimensions; where the target has more (an expert's matrix in the stack of experts), ones
stand before them: `piece.window(parameter)` is a tuple of slices of the *target*, and
`block.reshape(target[window].shape)` always fits. Pieces of a parameter never overlap. A cut of
dim 0 is one contiguous run of the file, a cut of any later dim is `count` runs, `stride` apart
(`byte_run`).

A parameter's dtype is that of its tensors; an engine may hold scales wider. Names of parameters are
the engine's (vLLM 0.33): qkv_proj, gate_up_proj, experts.w13_weight; the part before stays that of
the checkpoint. Sizes are bytes, cuts are elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from loaders.checkpoint.dtypes import itemsize
from loaders.checkpoint.manifest import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """How many ways the model is divided. `ep` is 1 (experts are cut like other matrices, over
    dp x tp ranks) or dp x tp (each rank has whole experts): engines offer nothing between (vLLM
    0.33, ParallelConfig)."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1

    @property
    def world(self) -> int:
        """Ranks altogether."""
        return self.tp * self.pp * self.dp

    @property
    def expert_ways(self) -> int:
        """Ranks over which a layer's experts are spread, one way or the other."""
        return self.tp * self.dp


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One rank's coordinates. Ranks count tp fastest, then pp, then dp (vLLM 0.33,
    initialize_model_parallel); `ep` runs over the dp x tp ranks of one pipeline stage."""

    rank: int
    tp: int
    pp: int
    dp: int
    ep: int

    @property
    def label(self) -> str:
        return f"DP{self.dp}_PP{self.pp}_TP{self.tp}"


def place_of(rank: int, degrees: Degrees) -> Place:
    """The coordinates of a rank. ValueError unless 0 <= rank < degrees.world."""
    if not 0 <= rank < degrees.world:
        raise ValueError(f"rank: expected 0 to {degrees.world - 1}, got {rank}")
    rest, tp = divmod(rank, degrees.tp)
    dp, pp = divmod(rest, degrees.pp)
    return Place(rank=rank, tp=tp, pp=pp, dp=dp, ep=dp * degrees.tp + tp if degrees.ep > 1 else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One block of one tensor: elements `start` to `stop` of `dim`, every other dimension whole.

    `shape` is the block's, in the source's dimensions. `at` says where in the parameter its first
    element goes, one number for each dimension of the parameter. `replicas` is on how many of the
    plan's ranks this same block is kept, this one included.
    """

    tensor: str
    dim: int
    start: int
    stop: int
    shape: tuple[int, ...]
    at: tuple[int, ...]
    replicas: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def window(self, parameter: Parameter) -> tuple[slice, ...]:
        """Where in the parameter the block goes, as slices of it."""
        sizes = (1,) * (len(parameter.shape) - len(self.shape)) + self.shape
        return tuple(slice(first, first + size) for first, size in zip(self.at, sizes, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of this rank. `kind` is the class of tensor ("attention", "experts", ...),
    `shape` what is allocated, `padding` how many of its elements no tensor fills (zeros)."""

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    padding: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes that are allocated, padding included."""
        return math.prod(self.shape) * itemsize(self.dtype)

    @property
    def kept_bytes(self) -> int:
        """Bytes that come from the files."""
        return sum(piece.elements for piece in self.pieces) * itemsize(self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """What one rank keeps. `skipped` maps a tensor that no rank keeps (a draft layer's, a tied
    head's) to the reason; `layers` are the half-open range of this pipeline stage."""

    place: Place
    degrees: Degrees
    layers: tuple[int, int]
    parameters: tuple[Parameter, ...]
    skipped: dict[str, str]

    @property
    def kept_bytes(self) -> int:
        return sum(parameter.kept_bytes for parameter in self.parameters)

    @property
    def parameter_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """`count` ranges of `length` bytes in a file, their starts `stride` bytes apart."""

    file: str
    offset: int
    length: int
    stride: int
    count: int

    @property
    def nbytes(self) -> int:
        return self.length * self.count

    @property
    def span(self) -> int:
        """Bytes from the first to the last, those between included."""
        return self.stride * (self.count - 1) + self.length


def byte_run(tensor: TensorSpec, piece: Piece) -> Run:
    """Where in its file the piece lies. ValueError if the tensor isn't one contiguous run there (a
    strided view of a torch file), or isn't the piece's."""
    if tensor.name != piece.tensor:
        raise ValueError(f"the piece is of {piece.tensor}, not of {tensor.name}")
    if tensor.offset is None:
        raise ValueError(f"{tensor.name}: its data isn't contiguous in {tensor.file}")
    size = itemsize(tensor.dtype)
    if not tensor.shape:
        return Run(file=tensor.file, offset=tensor.offset, length=size, stride=size, count=1)
    inner = math.prod(tensor.shape[piece.dim + 1 :]) * size
    row = tensor.shape[piece.dim] * inner
    length = (piece.stop - piece.start) * inner
    outer = math.prod(tensor.shape[: piece.dim])
    if length == row:  # whole rows follow each other
        length, row, outer = length * outer, length * outer, 1
    return Run(
        file=tensor.file,
        offset=tensor.offset + piece.start * inner,
        length=length,
        stride=row,
        count=outer,
    )
