"""Full tensors in host memory -> this rank's parameters, at the rate of a memory copy.

Stock engines narrow a tensor and copy the view, tensor after tensor (vLLM 0.33, the weight_loader
of each layer). Here every copy is cut into blocks, spread over the threads, and each byte is moved
once: rows go straight to their place in the fused or stacked parameter. What several parameters
keep of the same rows is carried while those rows lie in the cache: who cuts for all ranks reads
each byte of memory once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import groupby
from operator import attrgetter

import numpy as np
import numpy.typing as npt
import torch

from loaders.slicing.copies import Copy, by_tensor, padding_of
from loaders.slicing.plan import Parameter

BLOCK = 4 << 20
"""Bytes of a tensor that are carried together. Smaller ones cost more calls, larger ones leave
the cache and threads without work at the end."""

LONG = 1 << 20
"""Bytes from which on a row is carried by itself: numpy has no items of 2 GiB."""

Raw = npt.NDArray[np.uint8]


def raw(tensor: torch.Tensor) -> Raw:
    """The bytes of a contiguous host tensor, uint8, shape [nbytes]; shares its memory."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def cut(
    sources: Mapping[str, torch.Tensor],
    parameters: Sequence[Parameter],
    targets: Sequence[torch.Tensor],
    *,
    threads: int,
    block_bytes: int = BLOCK,
) -> None:
    """Fills `targets`, one contiguous tensor for each parameter, from `sources`, contiguous and by
    name. Padding becomes zeros. KeyError for a tensor that isn't there."""
    shapes = {name: tuple(tensor.shape) for name, tensor in sources.items()}
    into = [raw(target) for target in targets]
    come_from = {name: raw(tensor) for name, tensor in sources.items()}
    every = by_tensor(parameters, shapes)
    carry_out(every, come_from, into, threads=threads, block_bytes=block_bytes)
    zero_padding(parameters, into)


def carry_out(
    copies: Iterable[Copy],
    come_from: Mapping[str, Raw],
    into: Sequence[Raw],
    *,
    threads: int,
    block_bytes: int = BLOCK,
) -> None:
    """Carries copies out: from tensors by name into parameters by number. The caller is one of the
    `threads`; each takes the next batch when it has done one. The first error is raised when all
    have ended."""
    every = batches(copies, block_bytes)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                batch = next(every, None)
            if batch is None:
                return
            for copy in batch:
                move(copy, come_from[copy.tensor], copy.source, into[copy.parameter])

    with ThreadPoolExecutor(max_workers=max(threads - 1, 1)) as pool:
        others = [pool.submit(work) for _ in range(threads - 1)]
        work()
    for other in others:
        other.result()


def move(copy: Copy, source: Raw, start: int, target: Raw) -> None:
    """Carries a copy out whose first row begins at byte `start` of `source`. ValueError where its
    rows aren't all inside."""
    length, count = copy.length, copy.count
    if length < LONG:
        to = _rows(target, copy.target, length, copy.target_stride, count)
        np.copyto(to, _rows(source, start, length, copy.source_stride, count))
        return
    for row in range(count):
        part = _run(source, start + row * copy.source_stride, length)
        np.copyto(_run(target, copy.target + row * copy.target_stride, length), part)


def zero_padding(parameters: Sequence[Parameter], into: Sequence[Raw]) -> None:
    for parameter, target in zip(parameters, into, strict=True):
        padding = padding_of(parameter)
        if padding is not None:
            target[padding[0] : padding[1]] = 0


def batches(copies: Iterable[Copy], block_bytes: int) -> Iterator[list[Copy]]:
    """The copies in lists of about `block_bytes`. Of those of one tensor, where they follow each
    other, what lies in one band of `block_bytes` of the tensor is in one list, whichever parameters
    it goes to. Large copies are divided at rows (or, a single row, anywhere), small ones put
    together, since handing out each norm would cost more than copying it."""
    batch: list[Copy] = []
    room = block_bytes
    for _, some in groupby(copies, attrgetter("tensor")):
        bands: dict[int, list[Copy]] = {}
        for copy in some:
            for part in _parts(copy, block_bytes):
                bands.setdefault(part.source // block_bytes, []).append(part)
        for _, parts in sorted(bands.items()):
            batch += parts
            room -= sum(part.nbytes for part in parts)
            if room <= 0:
                yield batch
                batch, room = [], block_bytes
    if batch:
        yield batch


def _parts(copy: Copy, block_bytes: int) -> Iterator[Copy]:
    """The copy, divided where its source passes from one band of the tensor to the next. A row
    belongs to the band that it begins in."""
    first_band, last_band = copy.source // block_bytes, (copy.source_end - 1) // block_bytes
    if first_band == last_band:
        yield copy
    elif copy.count == 1:
        at = copy.source
        while at < copy.source_end:
            length = min(copy.source_end - at, block_bytes - at % block_bytes)
            yield replace(
                copy,
                source=at,
                target=copy.target + at - copy.source,
                length=length,
                source_stride=length,
                target_stride=length,
            )
            at += length
    else:
        first = 0
        while first < copy.count:
            begin = copy.source + first * copy.source_stride
            rows = -(-(block_bytes - begin % block_bytes) // copy.source_stride)
            yield copy.rows(first, min(first + rows, copy.count))
            first += rows


def _run(memory: Raw, start: int, length: int) -> Raw:
    if start < 0 or start + length > len(memory):
        raise ValueError(f"{length} bytes from {start}: outside {len(memory)}")
    return memory[start : start + length]


def _rows(memory: Raw, start: int, length: int, stride: int, count: int) -> npt.NDArray[np.void]:
    """`count` rows of `length` bytes, `stride` apart, as opaque items, one each: numpy carries an
    item by a single memmove, but would go over a short row of bytes by a loop of its own, which
    takes as long as the bytes do. numpy itself refuses what isn't inside (ValueError)."""
    return np.ndarray((count,), _items(length), memory, start, (stride,))


@cache
def _items(length: int) -> np.dtype[np.void]:
    return np.dtype((np.void, length))


def cut_stock(
    sources: Mapping[str, torch.Tensor],
    parameters: Sequence[Parameter],
    targets: Sequence[torch.Tensor],
) -> None:
    """The same as engines do it: for each tensor, narrow, then copy the view to its place, by
    torch's own threads. The definition that `cut` is compared with."""
    for parameter, target in zip(parameters, targets, strict=True):
        if parameter.padding:
            target.zero_()
        for piece in parameter.pieces:
            source = sources[piece.tensor]
            if source.dim():
                source = source.narrow(piece.dim, piece.start, piece.stop - piece.start)
            place = target[piece.window(parameter)]
            place.copy_(source.reshape(place.shape))
