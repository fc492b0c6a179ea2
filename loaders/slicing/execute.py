"""Full tensors in host memory -> this rank's parameters, at the rate of a memory copy.

Stock engines narrow a tensor and copy the view, tensor after tensor (vLLM 0.33, the weight_loader
of each layer). Here every copy is cut into blocks, spread over the threads, and each byte is moved
once: rows go straight to their place in the fused or stacked parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from loaders.slicing.copies import Copy, copies_of, padding_of
from loaders.slicing.plan import Parameter

BLOCK = 4 << 20
"""Bytes of a block. Smaller ones cost more calls, larger ones leave threads without work at the
end."""

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
    every = [
        copy
        for number, parameter in enumerate(parameters)
        for copy in copies_of(number, parameter, shapes)
    ]

    carry_out(every, come_from, into, threads=threads, block_bytes=block_bytes)
    zero_padding(parameters, into)


def carry_out(
    copies: Sequence[Copy],
    come_from: Mapping[str, Raw],
    into: Sequence[Raw],
    *,
    threads: int,
    block_bytes: int = BLOCK,
) -> None:
    """Carries copies out, spread over the threads: from tensors by name into parameters by
    number."""

    def act(batch: list[Copy]) -> None:
        for copy in batch:
            move(copy, come_from[copy.tensor], copy.source, into[copy.parameter])

    with ThreadPoolExecutor(max_workers=threads) as pool:
        for future in [pool.submit(act, batch) for batch in batches(copies, block_bytes)]:
            future.result()


def move(copy: Copy, source: Raw, start: int, target: Raw) -> None:
    """Carries a copy out whose first row begins at byte `start` of `source`."""
    np.copyto(
        _rows(target, copy.target, copy.length, copy.target_stride, copy.count),
        _rows(source, start, copy.length, copy.source_stride, copy.count),
    )


def zero_padding(parameters: Sequence[Parameter], into: Sequence[Raw]) -> None:
    for parameter, target in zip(parameters, into, strict=True):
        padding = padding_of(parameter)
        if padding is not None:
            target[padding[0] : padding[1]] = 0


def batches(copies: Sequence[Copy], block_bytes: int) -> Iterator[list[Copy]]:
    """The copies in lists of about `block_bytes`: large ones are divided at rows (or, a single
    row, anywhere), small ones put together, since handing out each norm would cost more than
    copying it."""
    batch: list[Copy] = []
    room = block_bytes
    for copy in copies:
        for part in _parts(copy, block_bytes):
            batch.append(part)
            room -= part.nbytes
            if room <= 0:
                yield batch
                batch, room = [], block_bytes
    if batch:
        yield batch


def _parts(copy: Copy, block_bytes: int) -> Iterator[Copy]:
    if copy.count == 1 and copy.length > block_bytes:
        for at in range(0, copy.length, block_bytes):
            length = min(block_bytes, copy.length - at)
            yield replace(
                copy,
                source=copy.source + at,
                target=copy.target + at,
                length=length,
                source_stride=length,
                target_stride=length,
            )
        return
    step = max(1, block_bytes // copy.length)
    for first in range(0, copy.count, step):
        yield copy.rows(first, min(first + step, copy.count))


def _rows(memory: Raw, start: int, length: int, stride: int, count: int) -> Raw:
    """`count` rows of `length` bytes, `stride` apart, as a view [count, length]. ValueError where
    they aren't all inside: as_strided would look anywhere."""
    if start < 0 or start + (count - 1) * stride + length > len(memory):
        raise ValueError(
            f"{count} rows of {length} bytes, {stride} apart, from {start}: outside {len(memory)}"
        )
    return np.lib.stride_tricks.as_strided(memory[start:], (count, length), (stride, 1))


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
