"""What a rank's quantised parameters are made from. Arithmetic on slicing plans.

Per-channel scales belong to whole rows of the full weight. A column cut keeps rows whole: the
rank's rows can be quantised by themselves. A row cut takes a part of every row, whose scale needs
the rest of it too: the full rows are read (as they are anyway: parts of rows are shorter than what
a device gives at a time) and their largest magnitudes found before the rank's part is quantised.
Engines that quantise a rank's slice alone (vLLM 0.33, online fp8) get other scales for these; here
the result is the one that quantising offline gives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loaders.checkpoint.dtypes import itemsize
from loaders.checkpoint.manifest import TensorSpec
from loaders.slicing.errors import PlanError
from loaders.slicing.plan import Parameter, Piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """A rank's parameters by what is done with them: `plain` are read and sliced, no more;
    `by_rows` are quantised as sliced (whole rows of the full weights); `within_rows` hold parts of
    rows. For a checkpoint that is quantised already `by_rows` and `within_rows` are empty, and its
    int8 weights are plain."""

    plain: tuple[Parameter, ...]
    by_rows: tuple[Parameter, ...]
    within_rows: tuple[Parameter, ...]


def shares_of(
    parameters: Sequence[Parameter], specs: Mapping[str, TensorSpec], quantised: frozenset[str]
) -> Shares:
    """`quantised`: names of the tensors that are to be. PlanError for a parameter of which only a
    part is, or that is padded: no engine has either."""
    plain: list[Parameter] = []
    by_rows: list[Parameter] = []
    within_rows: list[Parameter] = []
    for parameter in parameters:
        chosen = {piece.tensor in quantised for piece in parameter.pieces}
        if True not in chosen:
            plain.append(parameter)
            continue
        if False in chosen or parameter.padding:
            raise PlanError(f"{parameter.name}: only a part of it would be quantised")
        cut = any(_within_rows(piece, specs[piece.tensor]) for piece in parameter.pieces)
        (within_rows if cut else by_rows).append(parameter)
    for parameter in within_rows:
        for piece in parameter.pieces:
            if piece.shape[-1] != parameter.shape[-1] or piece.at[-1]:
                raise PlanError(f"{parameter.name}: parts of rows beside each other")
    return Shares(plain=tuple(plain), by_rows=tuple(by_rows), within_rows=tuple(within_rows))


def _within_rows(piece: Piece, spec: TensorSpec) -> bool:
    return piece.shape[-1] != spec.shape[-1]


def is_quantised(parameter: Parameter) -> bool:
    """Whether a parameter of a quantised checkpoint is a weight's int8 values."""
    return parameter.dtype == "int8" and len(parameter.shape) > 1 and _is_weight(parameter.name)


def _is_weight(name: str) -> bool:
    return name.endswith("weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """Bytes that a rank needs of the files: `divided` become less with more ranks, `whole` don't
    (what every rank keeps, and matrices that are cut within rows, which are read from their first
    row to their last)."""

    divided: int
    whole: int


def needed(parameters: Sequence[Parameter], specs: Mapping[str, TensorSpec]) -> Needed:
    divided = whole = 0
    for parameter in parameters:
        for piece in parameter.pieces:
            spec = specs[piece.tensor]
            if piece.dim == 0 and piece.shape != spec.shape and spec.shape:
                divided += piece.elements * itemsize(spec.dtype)
            else:
                whole += spec.nbytes
    return Needed(divided=divided, whole=whole)


def rows_of(parameter: Parameter) -> int:
    """Rows of a weight, those of stacked experts below each other."""
    return math.prod(parameter.shape[:-1])


def first_row(parameter: Parameter, piece: Piece) -> int:
    """The row of the parameter, counted as in `rows_of`, that a piece begins with."""
    row = 0
    for at, size in zip(piece.at[:-1], parameter.shape[:-1], strict=True):
        row = row * size + at
    return row
