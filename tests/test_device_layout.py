"""What an NPU and CUDA want: transposes, fractal blocks, views."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loaders.quantise.layout import from_nz, laid_out, layouts, nz_shape, out_shape, to_nz

sizes = st.integers(1, 70)


def values(rows: int, columns: int) -> torch.Tensor:
    numbers = torch.arange(rows * columns) % 251 - 125
    return numbers.to(torch.int8).reshape(rows, columns)


def test_nz_block_by_block() -> None:
    matrix = values(32, 64)
    blocks = laid_out(matrix.t().contiguous(), "nz")
    assert blocks.shape == (2, 2, 16, 32)
    assert blocks.is_contiguous()
    assert torch.equal(blocks[0, 0], matrix[:16, :32])
    assert torch.equal(blocks[0, 1], matrix[16:, :32])  # down the block column first
    assert torch.equal(blocks[1, 0], matrix[:16, 32:])


@given(rows=sizes, columns=sizes)
def test_nz_round_trip_and_padding(rows: int, columns: int) -> None:
    weight = values(columns, rows)
    out = torch.full(out_shape((columns, rows), "nz"), 99, dtype=torch.int8)
    blocks = laid_out(weight, "nz", out)
    assert blocks is out
    assert torch.equal(from_nz(blocks, (rows, columns)), weight.t())
    wide, high, height, width = blocks.shape
    assert (height, width) == (16, 32)
    assert (wide * 32 - columns) in range(32)
    assert (high * 16 - rows) in range(16)
    # Against numpy's own padding and reshaping.
    padded = np.zeros((high * 16, wide * 32), np.int8)
    padded[:rows, :columns] = weight.t().numpy()
    expected = padded.reshape(high, 16, wide, 32).transpose(2, 0, 1, 3)
    assert (blocks.numpy() == expected).all()


def test_nz_of_two_byte_values_has_square_blocks() -> None:
    assert nz_shape((17, 17), itemsize=2) == (2, 2, 16, 16)
    matrix = torch.arange(17 * 17, dtype=torch.float32).to(torch.bfloat16).reshape(17, 17)
    out = matrix.new_empty(nz_shape((17, 17), 2))
    assert torch.equal(from_nz(to_nz(matrix, out), (17, 17)), matrix)


@given(rows=sizes, columns=sizes)
def test_the_transpose_is_a_copy_and_the_view_is_none(rows: int, columns: int) -> None:
    weight = values(rows, columns)
    copied, view = laid_out(weight, "transpose"), laid_out(weight, "view")
    assert copied.shape == view.shape == (columns, rows) == out_shape((rows, columns), "view")
    assert torch.equal(copied, view)
    assert copied.is_contiguous()
    assert copied.data_ptr() != weight.data_ptr()
    assert view.data_ptr() == weight.data_ptr()


def test_an_output_for_another_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="expected an output of"):
        laid_out(values(32, 64), "nz", torch.empty(1, 1, 16, 32, dtype=torch.int8))


def test_what_stands_in_for_the_npus_cast_is_named_so() -> None:
    by_name = {layout.name: layout for layout in layouts(npu=False)}
    assert by_name["nz"].how == "plain-torch equivalent of torch_npu's cast"
    assert {layout.name: layout for layout in layouts(npu=True)}["nz"].how.startswith("torch_npu.")
    assert by_name["view"].device == "cuda"
