"""Tensors that come in runs of rows (Loader.load_rows), put together again as they were seen."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
import xxhash

from bench.consume import WRAP, feed, rows_sum
from bench.verify import Seen
from loaders.checkpoint.manifest import Checkpoint


class RowsError(ValueError):
    """Rows that aren't the next ones of their tensor."""


class Joined:
    """Adds up the rows of one tensor after another. With `digests` their digest as well: `digest`
    is that of the last whole tensor."""

    def __init__(self, checkpoint: Checkpoint, *, digests: bool = False) -> None:
        self._rows_of = {spec.name: next(iter(spec.shape), 1) for spec in checkpoint.tensors}
        self._digests = digests
        self._hasher = xxhash.xxh3_128()
        self._parts: list[Seen] = []  # of the tensor that isn't whole yet
        self._came = 0  # rows of it
        self.digest = ""

    def add(self, name: str, first: int, rows: torch.Tensor) -> Seen | None:
        """Reads all bytes of the rows. The tensor as it was seen, with its last rows; None before.
        RowsError for other rows than the next ones."""
        due = self._parts[0].name if self._parts else name
        if (name, first) != (due, self._came):
            raise RowsError(f"rows of {due} from {self._came} expected, got {name} from {first}")
        at = first * rows.element_size() * prod(rows.shape[1:])
        self._parts.append(Seen.of(name, rows, rows_sum(rows, at)))
        if self._digests:
            feed(self._hasher, rows)
        self._came += next(iter(rows.shape), 1)
        if self._came < self._rows_of.get(name, 0):
            return None
        whole = _whole(self._parts)
        self.digest = self._hasher.hexdigest()
        self._hasher, self._parts, self._came = xxhash.xxh3_128(), [], 0
        return whole

    def finish(self) -> None:
        """RowsError if the last rows of a tensor never came."""
        if self._parts:
            raise RowsError(f"rows of {self._parts[0].name} from {self._came} expected, got none")


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
