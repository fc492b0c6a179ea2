"""The order in which tensors are read that lie partly in memory, partly on storage only.

Pure arithmetic. Memory and device can be at work at the same time if both are given work: in the
order of the file, the one waits while the other's stretch is read, since no ring is as large as
half a checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LITTLE = 0.02
"""Part of all bytes: where memory has no more than that (headers that were just read, say), or
storage, the other one has nothing to wait for, and taking turns would only cost a larger ring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Item `number` is next. `stream` 0 or 1: which of two walks through the items it belongs to,
    each of them in the items' own order."""

    number: int
    stream: int


def in_order(count: int) -> list[Turn]:
    """All items in one walk."""
    return [Turn(number=number, stream=0) for number in range(count)]


def interleave(
    absent: Sequence[float],
    resident: Sequence[float],
    *,
    stint: int,
) -> list[Turn]:
    """Every item once. `absent`, `resident`: bytes of each item that only storage has, that memory
    has. In their own order, in one walk, where there is LITTLE of either.

    Items with more than their share of the absent bytes are one walk, the others the second one.
    The one that is behind goes on for `stint` bytes at least: neighbours in the file stay together
    and are read together. So both sums come to their ends together, whatever the rates of storage
    and memory: the slower of the two is never without work.
    """
    sums = sum(absent), sum(resident)
    if min(sums) <= LITTLE * sum(sums):
        return in_order(len(absent))
    shares = [(a / sums[0], r / sums[1]) for a, r in zip(absent, resident, strict=True)]
    waiting: tuple[list[int], list[int]] = ([], [])
    for number in reversed(range(len(shares))):
        waiting[shares[number][0] > shares[number][1]].append(number)
    turns: list[Turn] = []
    done = [0.0, 0.0]  # of the absent bytes, of the resident ones
    stream, left = 1, float(stint)
    while waiting[0] or waiting[1]:
        if left <= 0:
            stream, left = int(done[0] <= done[1]), float(stint)
        if not waiting[stream]:
            stream = 1 - stream
        number = waiting[stream].pop()
        turns.append(Turn(number=number, stream=stream))
        done[0] += shares[number][0]
        done[1] += shares[number][1]
        left -= absent[number] + resident[number]
    return turns
