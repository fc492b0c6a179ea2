"""Bytes that no two places of a file share."""

from __future__ import annotations

import numpy as np


def content(nbytes: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(nbytes)
