"""The tensors of a rank's state, one after another, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from loaders.checkpoint.dtypes import torch_dtype
from loaders.checkpoint.manifest import Checkpoint
from loaders.io.buffers import PAGE, allocate
from loaders.quantise.fast import Output, Quantiser
from loaders.quantise.fast import allocate as output_for
from loaders.quantise.layout import laid_out, out_shape
from loaders.quantise.schemes import Scheme
from loaders.slicing.execute import raw
from loaders.slicing.sliced_read import read_sliced
from loaders.snapshot.state import Kept, Step, batches

BATCH = 256 << 20
"""Bytes of parameters that are read together; a larger one is read alone."""


class Quantisers:
    """One `Quantiser` for each dtype that occurs, made when it does: each compiles once."""

    def __init__(self, scheme: Scheme | None, compiled: bool = True) -> None:
        self._scheme, self._compiled = scheme, compiled
        self._made: dict[torch.dtype, Quantiser] = {}

    @property
    def scheme(self) -> Scheme:
        assert self._scheme is not None, "asked to quantise without a scheme"
        return self._scheme

    def of(self, dtype: torch.dtype) -> Quantiser:
        if dtype not in self._made:
            self._made[dtype] = Quantiser(self.scheme, dtype, compiled=self._compiled)
        return self._made[dtype]

    @property
    def how(self) -> str | None:
        """How it was quantised ("torch.compile", "row blocks"); None if nothing was."""
        return ", ".join(sorted({one.how for one in self._made.values()})) or None


def fill(
    checkpoint: Checkpoint,
    every: Sequence[Step],
    quantisers: Quantisers,
    *,
    threads: int,
    batch_bytes: int = BATCH,
) -> Iterator[tuple[Kept, torch.Tensor]]:
    """Reads, slices, fuses, quantises and lays out, batch by batch; yields what is kept in the
    order of `every`. A tensor is valid until the next one is asked for. Memory: one batch (or the
    largest parameter) and the values of one weight in two layouts.

    LoadError, OSError for files that can't be read; QuantiseError for a weight that can't be
    quantised.
    """
    largest = max(
        (sum(_room(step) for step in batch) for batch in batches(every, batch_bytes)), default=0
    )
    memory = allocate(largest, huge=True)
    for batch in batches(every, batch_bytes):
        targets, at = [], 0
        for step in batch:
            nbytes = step.parameter.nbytes
            flat = torch.frombuffer(memory.view(at, nbytes), dtype=torch.uint8) if nbytes else None
            targets.append(_typed(flat, step))
            at += _room(step)
        parameters = [step.parameter for step in batch]
        read_sliced(checkpoint, parameters, [raw(one) for one in targets], threads=threads)
        for step, target in zip(batch, targets, strict=True):
            yield from _kept(step, target, quantisers)


def _room(step: Step) -> int:
    """Bytes in the batch's memory: from a page on, so that any element lies aligned."""
    return -(-step.parameter.nbytes // PAGE) * PAGE


def _typed(flat: torch.Tensor | None, step: Step) -> torch.Tensor:
    dtype, shape = torch_dtype(step.parameter.dtype), step.parameter.shape
    return torch.empty(shape, dtype=dtype) if flat is None else flat.view(dtype).view(shape)


def _kept(
    step: Step, target: torch.Tensor, quantisers: Quantisers
) -> Iterator[tuple[Kept, torch.Tensor]]:
    scale: torch.Tensor | None = None
    if step.quantised:
        target, scale = _quantised(step, target, quantisers)
    if step.layout is not None:
        stack = target.reshape(-1, *target.shape[-2:])
        shape = out_shape(tuple(stack.shape[1:]), step.layout, target.element_size())
        made = target.new_empty((len(stack), *shape))
        for matrix, into in zip(stack, made, strict=True):
            laid_out(matrix, step.layout, into)
        target = made.reshape(step.kept[0].shape)
    yield step.kept[0], target
    if scale is not None:
        yield step.kept[1], scale


def _quantised(
    step: Step, weight: torch.Tensor, quantisers: Quantisers
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and scales, each in memory of its own; a stack of experts matrix by matrix."""
    quantiser = quantisers.of(weight.dtype)
    if weight.dim() == 2:
        out = output_for(tuple(weight.shape), weight.dtype, quantisers.scheme)
        quantiser(weight, out, name=step.parameter.name)
        return out.values, out.scale
    values, scale = (
        torch.empty(kept.shape if kept.of is None else kept.of, dtype=torch_dtype(kept.dtype))
        for kept in step.kept
    )
    for number, matrix in enumerate(weight):
        out = Output(values=values[number], scale=scale[number])
        quantiser(matrix, out, name=f"{step.parameter.name}[{number}]")
    return values, scale
