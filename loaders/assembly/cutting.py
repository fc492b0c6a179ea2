"""A loader's tensors -> the parameters that they are parts of, as they come: whole, or in runs of
rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.text import listed
from loaders.io.buffers import PAGE
from loaders.slicing.copies import Copy, copies_of
from loaders.slicing.execute import Raw, carry_out, move, raw, zero_padding
from loaders.slicing.fetch import clipped
from loaders.slicing.plan import Parameter

ALONE = 1 << 20
"""Bytes: a smaller tensor is cut by the calling thread alone; threads would cost more."""


class Cutting:
    """Fills `into`, uint8, one for each parameter. One thread at a time may use it."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        parameters: Sequence[Parameter],
        into: Sequence[Raw],
        *,
        threads: int,
    ) -> None:
        self._parameters, self._into, self._threads = parameters, into, threads
        self._specs = {spec.name: spec for spec in checkpoint.tensors}
        self._copies: dict[str, list[Copy]] = {}
        self._lacking = [0] * len(parameters)  # bytes
        shapes = {spec.name: spec.shape for spec in checkpoint.tensors}
        for number, parameter in enumerate(parameters):
            for copy in copies_of(number, parameter, shapes):
                self._copies.setdefault(copy.tensor, []).append(copy)
                self._lacking[number] += copy.nbytes
        self._to_come = {name: self._specs[name].nbytes for name in self._copies}

    def add(self, name: str, first: int, rows: torch.Tensor) -> list[int]:
        """Carries what of a tensor's rows, the first of them row `first`, belongs to parameters to
        its places. The numbers of the parameters that have become whole by it."""
        if name not in self._to_come:
            return []
        copies = self._copies[name]
        if rows.nbytes < self._specs[name].nbytes:
            start = first * (rows.nbytes // rows.shape[0])
            copies = [part for copy in copies for part in clipped(copy, start, start + rows.nbytes)]
        self._carry(copies, name, raw(rows))
        self._to_come[name] -= rows.nbytes
        if self._to_come[name] <= 0:
            del self._to_come[name]
        for copy in copies:
            self._lacking[copy.parameter] -= copy.nbytes
        touched = dict.fromkeys(copy.parameter for copy in copies)
        return [number for number in touched if not self._lacking[number]]

    def finish(self, loader: str) -> None:
        """Clears the padding. ValueError for tensors that `loader` didn't yield."""
        if self._to_come:
            raise ValueError(
                f"{loader} didn't yield {len(self._to_come)} tensor(s) that parameters are made "
                f"of: {listed(list(self._to_come), 3)}"
            )
        zero_padding(self._parameters, self._into)

    def _carry(self, copies: Sequence[Copy], name: str, source: Raw) -> None:
        if sum(copy.nbytes for copy in copies) >= ALONE:
            carry_out(copies, {name: source}, self._into, threads=self._threads)
            return
        for copy in copies:
            move(copy, source, copy.source, self._into[copy.parameter])


def touch(tensor: torch.Tensor) -> int:
    """Reads a byte of every page of a host tensor; returns their sum, which means nothing."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return int(flat[::PAGE].sum()) + (int(flat[-1]) if flat.numel() else 0)
