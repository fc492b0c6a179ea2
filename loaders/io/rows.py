"""Tensors cut into runs of rows, so that a small ring can carry a large one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import gcd

from loaders.checkpoint.manifest import TensorSpec

LANE = 8
"""Bytes: each part begins at a multiple of it, so that sums of the parts add up."""


def parts_of(specs: Iterable[TensorSpec], most: int) -> Iterator[tuple[int, TensorSpec]]:
    """Each tensor as runs of rows of at most `most` bytes, in order: the index of the first row,
    and the run as a tensor of its own, under the same name. A run is longer where one row is, or
    where so many are needed for 8 bytes; scalars, empty tensors and those that aren't one run of
    bytes in the file stay whole."""
    for spec in specs:
        if spec.offset is None or spec.nbytes <= most or not spec.shape:
            yield 0, spec
            continue
        rows, rest = spec.shape[0], spec.shape[1:]
        row = spec.nbytes // rows
        unit = LANE // gcd(row, LANE)
        step = max(most // row // unit, 1) * unit
        for first in range(0, rows, step):
            count = min(step, rows - first)
            yield (
                first,
                replace(
                    spec,
                    shape=(count, *rest),
                    offset=spec.offset + first * row,
                    nbytes=count * row,
                ),
            )
