"""How much of each tensor the page cache holds, before anything is read."""

from __future__ import annotations

import os
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from loaders.checkpoint.manifest import Checkpoint, WeightFile
from loaders.io.sources import Residents
from loaders.io.tensors import by_file
from loaders.system.residency import REFUSALS

STEP = 4 << 20
"""Bytes that are asked about at once: half a millisecond for a GiB. What lies in between is
estimated."""


def resident_bytes(checkpoint: Checkpoint, residents: Residents) -> list[float]:
    """Bytes of each tensor in the page cache, in the manifest's order, estimated from the files in
    steps of STEP. Nothing, where nobody can tell. OSError if a file can't be opened."""
    found = [np.zeros(0)]
    for file, specs in by_file(checkpoint):
        edges, before = _known(file, residents)
        starts = np.array([spec.offset or 0 for spec in specs], dtype=np.float64)
        ends = starts + np.array([spec.nbytes for spec in specs], dtype=np.float64)
        found.append(np.interp(ends, edges, before) - np.interp(starts, edges, before))
    whole: list[float] = np.rint(np.concatenate(found)).tolist()
    return whole


def _known(
    file: WeightFile, residents: Residents
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """File offsets, and the resident bytes before each."""
    nothing = np.array([0.0, file.size]), np.zeros(2)
    measure, _ = residents.method(file.path)
    if measure is None:
        return nothing
    edges = [*range(0, file.size, STEP), file.size]
    descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        each = [
            min(measure(descriptor, start, end - start), end - start)
            for start, end in pairwise(edges)
        ]
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        return nothing
    finally:
        os.close(descriptor)
    return np.array(edges, dtype=np.float64), np.cumsum([0, *each], dtype=np.float64)
