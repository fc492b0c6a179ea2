"""Tensors that come in runs of rows (Loader.load_rows), put together again as they were seen."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
import xxhash

from bench.measuring.consume import WRAP, feed, rows_sum
from bench.measuring.verify import Seen
from loaders.checkpoint.manifest import Checkpoint


class RowsError(ValueError):
    """Rows that aren't the next ones of their tensor."""


class Joined:
    """Adds up the rows of each tensor. With `digests` their digest as well: `digest` is that of the
    last whole tensor. Rows that come before their turn are copied for it, and only for it."""

    def __init__(self, checkpoint: Checkpoint, *, digests: bool = False) -> None:
        self._rows_of = {spec.name: next(iter(spec.shape), 1) for spec in checkpoint.tensors}
        self._digests = digests
        self._begun: dict[str, _Begun] = {}  # tensors that aren't whole yet
        self.digest = ""

    def add(self, name: str, first: int, rows: torch.Tensor) -> Seen | None:
        """Reads all bytes of the rows. The tensor as it was seen, with the last of its rows to
        come; None before. RowsError for rows that came already."""
        begun = self._begun.setdefault(name, _Begun())
        stop = first + next(iter(rows.shape), 1)
        if first in begun.parts or first < begun.edge:
            raise RowsError(f"rows of {name} from {begun.edge} expected, got {name} from {first}")
        at = first * rows.element_size() * prod(rows.shape[1:])
        begun.parts[first] = Seen.of(name, rows, rows_sum(rows, at))
        if self._digests and first != begun.edge:
            begun.early[first] = rows.clone()
        elif self._digests:
            feed(begun.hasher, rows)
        begun.advance(first, stop)
        if begun.edge < self._rows_of.get(name, 0):
            return None
        del self._begun[name]
        self.digest = begun.hasher.hexdigest()
        return _whole([begun.parts[key] for key in sorted(begun.parts)])

    def finish(self) -> None:
        """RowsError if some rows of a tensor never came."""
        for name, begun in self._begun.items():
            raise RowsError(f"rows of {name} from {begun.edge} expected, got none")


class _Begun:
    """A tensor of which some rows have come: those before `edge`, and those that came early."""

    def __init__(self) -> None:
        self.parts: dict[int, Seen] = {}
        self.ends: dict[int, int] = {}
        self.early: dict[int, torch.Tensor] = {}
        self.edge = 0
        self.hasher = xxhash.xxh3_128()

    def advance(self, first: int, stop: int) -> None:
        self.ends[first] = stop
        while self.edge in self.ends:
            rows = self.early.pop(self.edge, None)
            if rows is not None:
                feed(self.hasher, rows)
            self.edge = self.ends.pop(self.edge)


def _whole(parts: Sequence[Seen]) -> Seen:
    if len(parts) == 1:
        return parts[0]
    last = parts[-1]
    oddities = [part.oddity for part in parts if part.oddity is not None]
    if len({(part.dtype, part.shape[1:]) for part in parts}) > 1:
        oddities.append("in rows of several kinds")
    return Seen(
        name=last.name,
        dtype=last.dtype,
        shape=(sum(part.shape[0] for part in parts), *last.shape[1:]),
        nbytes=sum(part.nbytes for part in parts),
        byte_sum=sum(part.byte_sum for part in parts) % WRAP,
        oddity=next(iter(oddities), None),
    )
