"""Host tensors that trip transfers, and whether they arrived. For every kind of device."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from loaders.device.interface import raw_bytes
from loaders.transfer.values import HostTensors

DTYPES = [
    torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.int64,
    torch.float64, torch.complex64, torch.bool, torch.float8_e4m3fn,
]  # fmt: skip


def noise(nbytes: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator)


def mix(large: int = 40_000) -> list[tuple[str, torch.Tensor]]:
    """Dtypes of every size, empty ones first, between and last, scalars, odd sizes, one that is
    larger than a small slot, and two names for one tensor."""
    found = [("empty.first", torch.empty(0, dtype=torch.bfloat16))]
    for number, dtype in enumerate(DTYPES):
        raw = noise(6 * dtype.itemsize, number)
        raw = raw % 2 if dtype is torch.bool else raw
        found.append((f"d.{number}", raw.view(dtype).view(3, 2)))
    found += [
        ("scalar", torch.tensor(1.5)),
        ("scalar.1", torch.tensor([2.5])),
        ("empty.0x8", torch.empty(0, 8)),
        ("odd", noise(1001, 90)),
        ("large", noise(large - large % 2, 91).view(torch.bfloat16)),
        ("odd.bf16", noise(70, 92).view(torch.bfloat16).view(5, 7)),
    ]
    return [*found, ("odd.tied", found[-3][1]), ("empty.last", torch.empty(4, 0))]


def wrong(arrived: Iterable[tuple[str, torch.Tensor]], host: HostTensors) -> list[str]:
    """The names of those that aren't the same in name, dtype, shape and every byte."""
    found = []
    for (name, tensor), (wanted_name, wanted) in zip(arrived, host, strict=True):
        same = (name, tensor.dtype, tensor.shape) == (wanted_name, wanted.dtype, wanted.shape)
        if not same or not torch.equal(raw_bytes(tensor).cpu(), raw_bytes(wanted)):
            found.append(wanted_name)
    return found
