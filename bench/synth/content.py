"""The numbers in a synthetic checkpoint: seeded, finite, incompressible, made in blocks.

A tensor's bytes follow from the seed, its name and its dtype alone, so that the same tensor has the
same bytes in every format, however it is sharded and in whatever order it is written.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future

import numpy as np
from numpy.typing import NDArray

from bench.synth.shapes import FP8, SCALE, ShapeTensor

BLOCK = 4 << 20  # bytes; changing it changes every checkpoint
_BYTES = 0x0101_0101_0101_0101
# Floats keep a random sign, a random mantissa and the lower bits of the exponent; its two highest
# bits become 01. All values are then normal numbers with magnitudes from 2^-63 (2^-7 in float16) to
# below 2: no NaN, no infinity, no denormals that would slow arithmetic down. Two fixed bits of a
# value are too few for lz4 or zstd to gain from. The two bits are the same ones in the upper
# 16 bits of bfloat16, float16 and float32.
_EXPONENT = {
    "bfloat16": (0x4000_4000_4000_4000, 0x2000_2000_2000_2000),
    "float16": (0x4000_4000_4000_4000, 0x2000_2000_2000_2000),
    "float32": (0x4000_0000_4000_0000, 0x2000_0000_2000_0000),
}
# Block scales are positive and near 2^-14, as DeepSeek-V3's are; they are few.
_SCALE = (0xFF80_0000_FF80_0000, 0x3880_0000_3880_0000)


def stream(
    tensors: Iterable[ShapeTensor], seed: int, pool: Executor, ahead: int
) -> Iterator[memoryview]:
    """The bytes of the tensors, one after another, in blocks of at most BLOCK bytes that never
    span two tensors. The pool makes up to `ahead` blocks in advance."""
    jobs = ((tensor, index) for tensor in tensors for index in range(-(-tensor.nbytes // BLOCK)))
    pending: deque[Future[memoryview]] = deque()
    for tensor, index in jobs:
        pending.append(pool.submit(block_of, tensor, seed, index))
        if len(pending) > ahead:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def take(blocks: Iterator[memoryview], tensor: ShapeTensor) -> Iterator[memoryview]:
    """The blocks of the tensor that comes next in the stream."""
    return itertools.islice(blocks, -(-tensor.nbytes // BLOCK))


def block_of(tensor: ShapeTensor, seed: int, index: int) -> memoryview:
    """Block `index` of a tensor's little-endian bytes."""
    size = min(BLOCK, tensor.nbytes - index * BLOCK)
    key = hashlib.blake2b(f"{seed}/{tensor.content}".encode(), digest_size=16).digest()
    source = np.random.SeedSequence(int.from_bytes(key, "little"), spawn_key=(index,))
    words = np.random.PCG64DXSM(source).random_raw(-(-size // 8))
    _make_finite(words, tensor)
    return words.astype("<u8", copy=False).view(np.uint8).data[:size]


def _make_finite(words: NDArray[np.uint64], tensor: ShapeTensor) -> None:
    """Turns random words into values of the tensor's dtype, in place."""
    if tensor.dtype == FP8:
        # In e4m3fn only 0x7f and 0xff are NaN: subtract one where seven bits plus one overflow.
        carry = words & np.uint64(0x7F * _BYTES)
        carry += np.uint64(_BYTES)
        carry >>= np.uint64(7)
        carry &= np.uint64(_BYTES)
        words -= carry
        return
    cleared, put = _SCALE if tensor.content.endswith(SCALE) else _EXPONENT[tensor.dtype]
    words &= np.uint64(~cleared & 0xFFFF_FFFF_FFFF_FFFF)
    words |= np.uint64(put)
