"""The consumer: reads every byte of every tensor, the same way for every contestant.

A lazy mapping so pays for its faults inside the timed region, and a sum that is off shows bytes
that never arrived. All cores take part (torch's own threads). Tens of GB/s on two cores: small
beside any load.
"""

from __future__ import annotations

import ctypes

import numpy as np
import torch
import xxhash

WRAP = 1 << 64
BLOCK = 64 << 10
"""Bytes whose place in the tensor counts as one."""

Raw = np.ndarray[tuple[int], np.dtype[np.uint8]]


PLAIN = (torch.Tensor, torch.nn.Parameter)
"""A subclass may answer questions about itself (size, address) as it likes, so none is taken."""


class NotHostMemoryError(TypeError):
    """A loader yielded something that has no bytes in host memory, or not plainly so."""


def byte_sum(tensor: torch.Tensor) -> int:
    """A sum modulo 2^64 over the tensor's bytes: little-endian 8-byte lanes counted from its first
    byte (the rest zero-padded), added up by blocks of 64 KiB, block i weighted 2 i + 1. One byte
    changed always changes it, since odd weights lose nothing modulo 2^64; blocks that changed
    places do, too: a read that landed in the wrong slot is seen while the tensor is timed."""
    raw = _bytes_of(tensor)
    return _placed_sum(raw, 0) if raw is not None else 0


def rows_sum(rows: torch.Tensor, at: int) -> int:
    """What a part of a tensor contributes to its `byte_sum`; `at` is the byte of the tensor that it
    begins with. The parts of a tensor add up, wherever it was cut."""
    raw = _bytes_of(rows)
    if raw is None:
        return 0
    cut = -at % 8  # bytes of a lane that the part before began
    lane = int.from_bytes(raw[:cut].tobytes(), "little") << 8 * (at % 8)
    total = lane * (2 * (at // BLOCK) + 1)
    at, raw = at + cut, raw[cut:]
    head = min(-at % BLOCK, len(raw))  # and the rest of such a block
    total += _lane_sum(raw[:head]) * (2 * (at // BLOCK) + 1)
    return (total + _placed_sum(raw[head:], (at + head) // BLOCK)) % WRAP


def placed_sum(data: memoryview, at: int = 0) -> int:
    """What a piece of memory contributes to the same sum; `at` is the byte of the whole that it
    begins with, a multiple of BLOCK. The pieces of a tensor add up."""
    if at % BLOCK:
        raise ValueError(f"a piece begins at a multiple of {BLOCK}, got {at}")
    return _placed_sum(np.frombuffer(data, dtype=np.uint8), at // BLOCK)


def digest(tensor: torch.Tensor) -> str:
    """128 bits of xxh3 over the tensor's bytes, in hex."""
    hasher = xxhash.xxh3_128()
    feed(hasher, tensor)
    return hasher.hexdigest()


def feed(hasher: xxhash.xxh3_128, tensor: torch.Tensor) -> None:
    """Adds the tensor's bytes to what is hashed."""
    raw = _bytes_of(tensor)
    if raw is not None:
        hasher.update(raw.data)


def warm_up() -> None:
    """Starts torch's threads and numpy's machinery, so that no sample pays for them."""
    byte_sum(torch.ones(1 << 20, dtype=torch.int64))


def _bytes_of(tensor: torch.Tensor) -> Raw | None:
    """The tensor's memory itself, not a copy; None if it has no bytes."""
    if type(tensor) not in PLAIN:
        raise NotHostMemoryError(f"expected a torch.Tensor, got {_kind(tensor)}")
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_nested:
        nested = "nested " if tensor.is_nested else ""
        raise NotHostMemoryError(
            f"expected a strided tensor in host memory, got a {nested}{tensor.layout} tensor on "
            f"{tensor.device}"
        )
    if tensor.nbytes == 0:
        return None
    flat = tensor.detach().contiguous()
    address = flat.data_ptr()
    end = flat.storage_offset() * flat.element_size() + flat.nbytes
    if address == 0 or flat.untyped_storage().nbytes() < end:
        raise NotHostMemoryError(
            f"expected a tensor of {flat.nbytes} bytes, got one whose storage holds "
            f"{flat.untyped_storage().nbytes()}"
        )
    memory = (ctypes.c_uint8 * flat.nbytes).from_address(address)
    memory._keep = flat  # type: ignore[attr-defined]  # the memory is freed with the tensor
    raw: Raw = np.ctypeslib.as_array(memory)
    return raw


def _kind(value: object) -> str:
    """What it is, without its contents: the text of a tensor would read its memory."""
    subclass = " (a subclass of it)" if isinstance(value, torch.Tensor) else ""
    return f"{type(value).__module__}.{type(value).__qualname__}{subclass}"


def _placed_sum(raw: Raw, first: int) -> int:
    blocks = len(raw) // BLOCK
    if blocks == 0:
        return _lane_sum(raw) * (2 * first + 1) % WRAP
    lanes = raw[: blocks * BLOCK].view(np.int64).reshape(blocks, BLOCK // 8)
    by_all_cores = raw.flags.writeable  # torch can't take read-only memory
    sums = torch.from_numpy(lanes).sum(dim=1).numpy() if by_all_cores else lanes.sum(axis=1)
    weights = np.arange(2 * first + 1, 2 * (first + blocks) + 1, 2, dtype=np.int64)
    rest = _lane_sum(raw[blocks * BLOCK :]) * (2 * (first + blocks) + 1)
    return (int((sums * weights).sum()) + rest) % WRAP


def _lane_sum(raw: Raw) -> int:
    whole = len(raw) // 8 * 8
    lanes = raw[:whole].view(np.int64)
    # torch sums with all cores, and lanes needn't be aligned for it; it can't take read-only memory
    total = int(torch.from_numpy(lanes).sum().item() if raw.flags.writeable else lanes.sum())
    return (total + int.from_bytes(raw[whole:].tobytes(), "little")) % WRAP
