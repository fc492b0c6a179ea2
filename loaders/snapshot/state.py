"""Which tensors the state of one rank consists of, and how each comes about. Arithmetic alone.

A weight that is quantised becomes two: its values under its own name, its scales under that name
with `_scale`, as checkpoints name them. Scales are those of this rank's slice, as an engine makes
them that quantises after loading; stacked experts are quantised one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loaders.checkpoint.dtypes import itemsize
from loaders.checkpoint.modules import left_alone, module_of
from loaders.checkpoint.text import shown
from loaders.quantise.layout import Name, out_shape
from loaders.quantise.schemes import WEIGHT_DTYPES, Scheme, scale_dtype, scale_shape
from loaders.slicing.plan import Parameter
from loaders.snapshot.errors import StateError

_EIGHT_BITS = ("int8", "float8_e4m3fn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A tensor of the state. `of` is the shape [.., out, in] of values in another layout."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    of: tuple[int, ...] | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * itemsize(self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One parameter of the plan, and what is kept of it: itself, or its values and their scales.
    `layout` is the one that its values are to have, None to leave them."""

    parameter: Parameter
    kept: tuple[Kept, ...]
    quantised: bool = False
    layout: Name | None = None


def steps(
    parameters: Sequence[Parameter], scheme: Scheme | None, layout: Name | None
) -> tuple[Step, ...]:
    """What becomes of each parameter. StateError if there is nothing to quantise or to lay out, and
    if the model is quantised already."""
    every = tuple(_step(parameter, scheme, layout) for parameter in parameters)
    if scheme is not None and not any(step.quantised for step in every):
        again = [one.name for one in parameters if one.dtype in _EIGHT_BITS and _linear(one)]
        why = f"it is quantised already ({shown(again[0])})" if again else "it has no linear weight"
        raise StateError(f"nothing to quantise: {why}; leave out --quantise")
    if layout is not None and not any(step.layout for step in every):
        raise StateError(
            f"nothing to put into the layout {layout!r}: layouts are those of quantised weights; "
            "add --quantise, or leave out --layout"
        )
    return every


def _step(parameter: Parameter, scheme: Scheme | None, layout: Name | None) -> Step:
    name, dtype, shape = parameter.name, parameter.dtype, parameter.shape
    linear = _linear(parameter)
    quantised = scheme is not None and linear and dtype in WEIGHT_DTYPES
    scales: tuple[Kept, ...] = ()
    if quantised:
        assert scheme is not None
        scale = (*shape[:-2], *scale_shape(shape[-2:], scheme.granularity))
        kept = Kept(name=f"{name}_scale", dtype=scale_dtype(scheme, dtype), shape=scale)
        scales, dtype = (kept,), scheme.rule.stored
    laid = layout if linear and dtype in _EIGHT_BITS else None
    values = Kept(name=name, dtype=dtype, shape=shape)
    if laid is not None:
        laid_shape = (*shape[:-2], *out_shape(shape[-2:], laid, itemsize(dtype)))
        values = Kept(name=name, dtype=dtype, shape=laid_shape, of=shape)
    return Step(parameter=parameter, kept=(values, *scales), quantised=quantised, layout=laid)


def _linear(parameter: Parameter) -> bool:
    """Whether the field's tools would quantise it: the weight of a linear layer, or experts'."""
    stacked = len(parameter.shape) == 3 and parameter.kind == "experts"
    if not (parameter.name.endswith("weight") and (len(parameter.shape) == 2 or stacked)):
        return False
    modules = {module_of(piece.tensor) for piece in parameter.pieces}
    modules.add(module_of(parameter.name))
    return parameter.nbytes > 0 and all(left_alone(module) is None for module in modules)


def batches(every: Sequence[Step], most: int) -> Iterator[list[Step]]:
    """Runs of parameters of at most `most` bytes together, one at least."""
    batch: list[Step] = []
    total = 0
    for step in every:
        nbytes = step.parameter.nbytes
        if batch and total + nbytes > most:
            yield batch
            batch, total = [], 0
        batch.append(step)
        total += nbytes
    if batch:
        yield batch
