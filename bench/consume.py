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
Raw = np.ndarray[tuple[int], np.dtype[np.uint8]]


PLAIN = (torch.Tensor, torch.nn.Parameter)
"""A subclass may answer questions about itself (size, address) as it likes, so none is taken."""


class NotHostMemoryError(TypeError):
    """A loader yielded something that has no bytes in host memory, or not plainly so."""


def byte_sum(tensor: torch.Tensor) -> int:
    """The sum modulo 2^64 of the tensor's bytes as little-endian 8-byte lanes counted from its
    first byte (the rest zero-padded). One byte changed always changes it."""
    raw = _bytes_of(tensor)
    return _lane_sum(raw) if raw is not None else 0


def lane_sum(data: memoryview) -> int:
    """The same sum over plain memory."""
    return _lane_sum(np.frombuffer(data, dtype=np.uint8))


def digest(tensor: torch.Tensor) -> str:
    """128 bits of xxh3 over the tensor's bytes, in hex."""
    raw = _bytes_of(tensor)
    return xxhash.xxh3_128_hexdigest(raw.data if raw is not None else b"")


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


def _lane_sum(raw: Raw) -> int:
    whole = len(raw) // 8 * 8
    lanes = raw[:whole].view(np.int64)
    # torch sums with all cores, and lanes needn't be aligned for it; it can't take read-only memory
    total = int(torch.from_numpy(lanes).sum().item() if raw.flags.writeable else lanes.sum())
    return (total + int.from_bytes(raw[whole:].tobytes(), "little")) % WRAP
