"""One rank's block of one tensor: a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Elements `start` to `stop` of `dim`, kept by `replicas` ranks of one pipeline stage. `part`
    is what it is in its parameter; `allocated` how many elements of `dim` its parameter has for
    it, where those are more."""

    part: str
    dim: int
    start: int
    stop: int
    shape: tuple[int, ...]
    replicas: int
    allocated: int | None = None
