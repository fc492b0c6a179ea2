"""The consumer: every byte counts, wherever it lies; what has none in host memory is refused."""

from __future__ import annotations

import warnings
from itertools import pairwise

import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from bench.measuring.consume import (
    BLOCK,
    WRAP,
    NotHostMemoryError,
    byte_sum,
    digest,
    placed_sum,
    rows_sum,
    warm_up,
)
from loaders.checkpoint.dtypes import TABLE, supported

DTYPES = [getattr(torch, row.name) for row in TABLE if supported(row.name)]


def plain_sum(data: bytes) -> int:
    lanes = [data[start : start + 8] for start in range(0, len(data), 8)]
    return sum(int.from_bytes(lane, "little") for lane in lanes) % WRAP


def plain_placed_sum(data: bytes) -> int:
    blocks = [data[start : start + BLOCK] for start in range(0, len(data), BLOCK)]
    return sum((2 * i + 1) * plain_sum(block) for i, block in enumerate(blocks)) % WRAP


def tensor_at(offset: int, data: bytes) -> torch.Tensor:
    """uint8 over `data`, `offset` bytes behind an aligned address."""
    room = torch.zeros(offset + len(data), dtype=torch.uint8)
    part = room[offset:]
    if data:
        part.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return part


@given(st.binary(max_size=200), st.integers(0, 17))
def test_the_sum_is_the_plain_one(data: bytes, offset: int) -> None:
    tensor = tensor_at(offset, data)
    assert byte_sum(tensor) == plain_sum(data)
    assert placed_sum(memoryview(data)) == plain_sum(data)  # read-only memory
    assert placed_sum(memoryview(bytearray(data))) == plain_sum(data)
    assert digest(tensor) == xxhash.xxh3_128_hexdigest(data)


@given(st.sampled_from(DTYPES), st.integers(0, 40), st.integers(0, 3), st.randoms())
def test_the_sum_is_the_plain_one_for_every_dtype(
    dtype: torch.dtype, elements: int, ahead: int, random: object
) -> None:
    data = random.randbytes(elements * dtype.itemsize)  # type: ignore[attr-defined]
    tensor = tensor_at(ahead * dtype.itemsize, data).view(dtype)
    assert byte_sum(tensor) == plain_sum(data)
    assert digest(tensor) == xxhash.xxh3_128_hexdigest(data)


@given(st.binary(min_size=1, max_size=100), st.data(), st.integers(0, 9))
def test_one_changed_byte_changes_the_sum(data: bytes, draw: st.DataObject, offset: int) -> None:
    at = draw.draw(st.integers(0, len(data) - 1))
    other = draw.draw(st.integers(0, 255).filter(lambda value: value != data[at]))
    changed = data[:at] + bytes([other]) + data[at + 1 :]
    one, two = tensor_at(offset, data), tensor_at(offset, changed)
    assert byte_sum(one) != byte_sum(two)
    assert digest(one) != digest(two)


@given(data=st.binary(max_size=40), cuts=st.lists(st.integers(0, 40), max_size=4))
def test_sums_of_parts_add_up_wherever_they_are_cut(data: bytes, cuts: list[int]) -> None:
    """Also in the middle of a lane, and across the edge of a block."""
    for ahead in (b"", bytes(BLOCK - 20), bytes(3 * BLOCK - 3)):
        whole = ahead + data
        edges = [0, *sorted(min(len(ahead) + cut, len(whole)) for cut in cuts), len(whole)]
        total = sum(
            rows_sum(tensor_at(1, whole[begin:end]), begin) for begin, end in pairwise(edges)
        )
        assert total % WRAP == plain_placed_sum(whole)


def test_large_ones_wrap_around() -> None:
    data = b"\xff" * (3 << 20) + b"\xff\xff\xff"
    assert byte_sum(tensor_at(3, data)) == plain_placed_sum(data)


@given(st.integers(1, 3 * BLOCK + 9), st.integers(0, 3), st.randoms())
def test_the_place_of_a_block_counts(size: int, cut: int, random: object) -> None:
    data = random.randbytes(size)  # type: ignore[attr-defined]
    expected = plain_placed_sum(data)
    assert byte_sum(tensor_at(1, data)) == expected
    view, at = memoryview(data), cut * BLOCK
    assert (placed_sum(view[:at]) + placed_sum(view[at:], at)) % WRAP == expected


def test_blocks_that_changed_places_change_the_sum() -> None:
    data = bytes(range(256)) * (BLOCK // 256) + bytes(BLOCK)
    swapped = data[BLOCK:] + data[:BLOCK]
    assert plain_sum(data) == plain_sum(swapped)
    assert byte_sum(tensor_at(0, data)) != byte_sum(tensor_at(0, swapped))
    assert placed_sum(memoryview(data)) != placed_sum(memoryview(swapped))


def test_a_piece_begins_at_a_block() -> None:
    with pytest.raises(ValueError, match="multiple"):
        placed_sum(memoryview(b"abc"), 8)


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), (0, 0)])
def test_empties_have_no_bytes(shape: tuple[int, ...]) -> None:
    assert byte_sum(torch.empty(shape)) == 0
    assert digest(torch.empty(shape)) == xxhash.xxh3_128_hexdigest(b"")


def test_scalars_and_parameters() -> None:
    assert byte_sum(torch.tensor(1.0)) == 0x3F800000
    assert byte_sum(torch.tensor(True)) == 1
    assert byte_sum(torch.nn.Parameter(torch.tensor([1.0]))) == 0x3F800000


def test_a_strided_view_is_read_as_it_counts_not_as_it_lies() -> None:
    whole = torch.arange(64, dtype=torch.uint8)
    assert byte_sum(whole[::2]) == plain_sum(bytes(range(0, 64, 2)))
    assert byte_sum(whole.view(8, 8).t()) == byte_sum(whole.view(8, 8).t().contiguous())
    assert byte_sum(torch.ones(1, dtype=torch.uint8).expand(9)) == plain_sum(b"\1" * 9)


def test_reading_changes_nothing() -> None:
    data = bytes(range(256))
    kept = bytearray(data)
    tensor = torch.frombuffer(kept, dtype=torch.uint8)
    byte_sum(tensor)
    digest(tensor)
    assert kept == data


class Liar(torch.Tensor):
    nbytes = 0


class Polite(torch.Tensor):
    pass


def _resized() -> torch.Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(8)
    return tensor


def _fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(4)


NOT_HERE = {
    "meta": lambda: torch.empty(3, device="meta"),
    "empty meta": lambda: torch.empty(0, device="meta"),
    "fake": _fake,
    "sparse": lambda: torch.eye(3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "mkldnn": lambda: torch.ones(4).to_mkldnn(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "liar": lambda: torch.ones(4).as_subclass(Liar),
    "subclass": lambda: torch.ones(4).as_subclass(Polite),
    "cut storage": _resized,
    "array": lambda: torch.ones(4).numpy(),
    "bytes": lambda: b"bytes",
    "nothing": lambda: None,
}


@pytest.mark.parametrize("kind", NOT_HERE)
def test_what_has_no_plain_bytes_in_host_memory_is_refused(kind: str) -> None:
    with warnings.catch_warnings(action="ignore"):  # torch warns of its own beta features
        value = NOT_HERE[kind]()
        for read in (byte_sum, digest):
            with pytest.raises(NotHostMemoryError, match="expected a"):
                read(value)


def test_quantised_tensors_have_bytes() -> None:
    with warnings.catch_warnings(action="ignore"):
        tensor = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8)
        assert byte_sum(tensor) == plain_sum(b"\x0a" * 4)


def test_warming_up_takes_no_argument_and_leaves_nothing() -> None:
    assert warm_up() is None
