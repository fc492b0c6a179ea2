"""What the scales of a quantised checkpoint hold: values that no weight can be multiplied by.

A scale is a positive number. NaN or infinity spread to every output of their channel, a negative
one turns its sign, and a zero makes the channel vanish; engines load all of them without a word.
Scales are small (a number for each channel), so they are read whole; weights aren't.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loaders.checkpoint import dtypes
from loaders.checkpoint.manifest import Problem, TensorSpec
from loaders.checkpoint.text import shown

READ: Final = {"float16", "bfloat16", "float32", "float64"}


def problems_of(root: str, spec: TensorSpec) -> Iterator[Problem]:
    """At most two: what spoils outputs, an error; zeros, a warning. `root` is the checkpoint's
    folder."""
    if spec.dtype not in READ or spec.offset is None:
        return
    try:
        with (Path(root) / spec.file).open("rb") as file:
            file.seek(spec.offset)
            values = _floats(file.read(spec.nbytes), spec.dtype)
    except OSError as error:
        text = f"{shown(spec.name)}: its values can't be read: {error}"
        yield Problem(code="unreadable", file=spec.file, tensor=spec.name, message=text)
        return
    bad = {
        "not a number": np.isnan(values),
        "infinite": np.isinf(values),
        "negative": values < 0,
    }
    wrong = [f"{mask.sum():,} {kind}" for kind, mask in bad.items() if mask.any()]
    first = np.flatnonzero(np.logical_or.reduce(list(bad.values())))
    if wrong:
        yield _problem(spec, values, int(first[0]), ", ".join(wrong), "error")
    zeros = np.flatnonzero(values == 0)
    if len(zeros):
        yield _problem(spec, values, int(zeros[0]), f"{len(zeros):,} zero", "warning")


def _floats(data: bytes, dtype: str) -> NDArray[np.floating]:
    raw = np.frombuffer(data, dtypes.numpy_dtype(dtype))
    # the upper half of a float32
    return (raw.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else raw


def _problem(
    spec: TensorSpec, values: NDArray[np.floating], at: int, what: str, severity: str
) -> Problem:
    text = (
        f"{shown(spec.name)}: expected positive scales, found {what} of {len(values):,}, the first "
        f"at {at:,} ({values[at]:g}); quantise this layer again"
    )
    return Problem(
        code="scale-value",
        file=spec.file,
        tensor=spec.name,
        message=text,
        severity="error" if severity == "error" else "warning",
    )
