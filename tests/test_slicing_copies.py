"""Cutting in memory and while reading give what narrow and copy give, whatever the pieces."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from loaders.checkpoint.read import open_checkpoint
from loaders.io.buffers import PAGE
from loaders.slicing import execute
from loaders.slicing.copies import Copy, by_tensor, copies_of, padding_of
from loaders.slicing.execute import batches, carry_out, cut, cut_stock, raw
from loaders.slicing.fetch import fetches
from loaders.slicing.plan import Parameter, Piece
from loaders.slicing.sliced_read import fetched_bytes, read_sliced
from tests.tiny_slicing import manifest_of

DTYPES = {"bfloat16": torch.bfloat16, "int8": torch.int8, "float32": torch.float32}


def parameter_of(name: str, dtype: str, target: tuple[int, ...], *pieces: Piece) -> Parameter:
    return Parameter(name=name, kind="any", dtype=dtype, shape=target, pieces=pieces)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[Parameter, tuple[int, ...]]:
    """A tensor's shape, a block of it, and a parameter that has the block somewhere."""
    shape = tuple(draw(st.lists(st.integers(1, 7), max_size=3)))
    dim = draw(st.integers(0, max(len(shape) - 1, 0)))
    size = shape[dim] if shape else 1
    start = draw(st.integers(0, size - 1))
    stop = draw(st.integers(start + 1, size))
    block = (*shape[:dim], stop - start, *shape[dim + 1 :]) if shape else ()
    before = draw(st.lists(st.integers(1, 3), max_size=1)) if shape else [1]
    room = [draw(st.integers(0, 2)) for _ in block]
    target = (*before, *(size + more for size, more in zip(block, room, strict=True)))
    at = tuple(draw(st.integers(0, one - 1)) for one in before) + tuple(
        draw(st.integers(0, more)) for more in room
    )
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    piece = Piece(tensor="w", dim=dim, start=start, stop=stop, shape=block, at=at, replicas=1)
    return parameter_of("p", dtype, target, piece), shape


def source_of(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    count = math.prod(shape)
    return (torch.arange(count) % 113 + 1).to(DTYPES[dtype]).reshape(shape)


def blank(parameter: Parameter) -> torch.Tensor:
    return torch.zeros(parameter.shape, dtype=DTYPES[parameter.dtype])


@given(cuts(), st.integers(1, 64))
def test_a_cut_in_memory_is_what_narrow_and_copy_give(
    made: tuple[Parameter, tuple[int, ...]], block: int
) -> None:
    parameter, shape = made
    sources = {"w": source_of(shape, parameter.dtype)}
    expected, found = blank(parameter), blank(parameter)
    cut_stock(sources, [parameter], [expected])
    cut(sources, [parameter], [found], threads=2, block_bytes=block)
    assert torch.equal(found, expected)


@given(cuts(), st.integers(1, 64))
def test_batches_hold_every_byte_once(made: tuple[Parameter, tuple[int, ...]], block: int) -> None:
    parameter, shape = made
    every = copies_of(0, parameter, {"w": shape})
    parts = [copy for batch in batches(every, block) for copy in batch]
    target = [
        copy.target + row * copy.target_stride + byte
        for copy in parts
        for row in range(copy.count)
        for byte in range(copy.length)
    ]
    assert len(set(target)) == len(target) == parameter.kept_bytes


def narrow(rank: int) -> Parameter:
    piece = Piece(
        tensor="w", dim=1, start=2 * rank, stop=2 * rank + 2, shape=(64, 2), at=(0, 0), replicas=1
    )
    return parameter_of(f"p{rank}", "int8", (64, 2), piece)


def test_what_all_ranks_keep_of_the_same_rows_is_carried_together() -> None:
    """64 rows of 8 bytes, a band of 128 bytes is 16 of them: each batch has them for each rank."""
    ranks = [narrow(rank) for rank in range(4)]
    found = list(batches(by_tensor(ranks, {"w": (64, 8)}), 128))
    assert [[(copy.parameter, copy.source, copy.count) for copy in batch] for batch in found] == [
        [(rank, band * 128 + 2 * rank, 16) for rank in range(4)] for band in range(4)
    ]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("long", [1, execute.LONG])
def test_short_and_long_rows_come_to_the_same(
    threads: int, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "LONG", long)
    ranks = [narrow(rank) for rank in range(4)]
    source = source_of((64, 8), "int8")
    found = [blank(one) for one in ranks]
    cut({"w": source}, ranks, found, threads=threads, block_bytes=100)
    assert torch.equal(torch.cat(found, dim=1), source)


@pytest.mark.parametrize("long", [1, execute.LONG])
@pytest.mark.parametrize("room", [7, 9])
def test_rows_outside_of_the_memory_are_refused(
    long: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "LONG", long)
    copy = Copy(
        tensor="w", parameter=0, source=0, target=0, length=2, source_stride=4, target_stride=2,
        count=4,
    )  # fmt: skip
    source, target = np.zeros(room + 4, dtype=np.uint8), np.zeros(16 - room, dtype=np.uint8)
    with pytest.raises(ValueError, match=r"outside|incompatible"):
        carry_out([copy], {"w": source}, [target], threads=2)


@given(cuts(), st.integers(0, 40), st.data())
def test_any_window_of_a_range_gives_its_bytes_once(
    made: tuple[Parameter, tuple[int, ...]], gap: int, data: st.DataObject
) -> None:
    """Whatever blocks a range is read in, each kept byte is carried to its place once."""
    parameter, shape = made
    source = raw(source_of(shape, parameter.dtype))
    checkpoint = manifest_of({"w": (shape, parameter.dtype)})
    found = raw(blank(parameter))
    copied = 0
    for fetch in fetches(checkpoint, [parameter], gap):
        at = 0
        while at < fetch.length:
            length = data.draw(st.integers(1, fetch.length - at))
            for copy in fetch.within(at, length):
                assert copy.source >= 0
                assert copy.source_end <= length
                for row in range(copy.count):
                    begin = fetch.offset + at + copy.source + row * copy.source_stride
                    to = copy.target + row * copy.target_stride
                    found[to : to + copy.length] = source[begin : begin + copy.length]
                copied += copy.nbytes
            at += length
    expected = blank(parameter)
    cut_stock({"w": source_of(shape, parameter.dtype)}, [parameter], [expected])
    assert copied == parameter.kept_bytes
    assert (found == raw(expected)).all()


def test_fused_parts_stand_where_they_belong_and_padding_is_zero() -> None:
    q, k = torch.arange(24.0).reshape(4, 6), torch.arange(100.0, 112.0).reshape(2, 6)
    parts = (
        Piece(tensor="q", dim=0, start=2, stop=4, shape=(2, 6), at=(0, 0), replicas=1),
        Piece(tensor="k", dim=0, start=1, stop=2, shape=(1, 6), at=(2, 0), replicas=2),
    )
    fused = parameter_of("qkv", "float32", (5, 6), *parts)
    fused = replace(fused, padding=12)
    assert padding_of(fused) == (72, 120)
    found = torch.full((5, 6), 7.0)
    cut({"q": q, "k": k}, [fused], [found], threads=2)
    assert torch.equal(found, torch.cat([q[2:], k[1:], torch.zeros(2, 6)]))


def test_padding_in_the_middle_is_refused() -> None:
    piece = Piece(tensor="w", dim=0, start=0, stop=1, shape=(1, 2), at=(3, 0), replicas=1)
    holed = replace(parameter_of("p", "int8", (4, 2), piece), padding=6)
    with pytest.raises(ValueError, match="padding isn't at its end"):
        padding_of(holed)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("threads", [1, 3])
def test_reading_slices_gives_what_reading_all_and_cutting_gives(
    tmp_path: Path, direct: bool, threads: int
) -> None:
    tensors = {
        "up": torch.randn(64, 300).to(torch.bfloat16),
        "down": torch.randn(300, 64).to(torch.bfloat16),
        "norm": torch.randn(300),
        "experts": torch.randn(4, 16, 20),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(str(tmp_path))
    parameters = [
        parameter_of("up", "bfloat16", (32, 300), whole("up", 0, 32, 64, (32, 300))),
        parameter_of("down", "bfloat16", (300, 32), whole("down", 1, 16, 48, (300, 32))),
        parameter_of("norm", "float32", (300,), whole("norm", 0, 0, 300, (300,))),
        parameter_of("experts", "float32", (4, 16, 5), whole("experts", 2, 5, 10, (4, 16, 5))),
    ]
    expected = [blank(one) for one in parameters]
    cut_stock(tensors, parameters, expected)
    found = [blank(one) for one in parameters]
    read_sliced(
        checkpoint,
        parameters,
        [raw(one) for one in found],
        threads=threads,
        block_bytes=PAGE,
        direct=direct,
    )
    assert all(map(torch.equal, found, expected))


def whole(name: str, dim: int, start: int, stop: int, shape: tuple[int, ...]) -> Piece:
    at = (0,) * len(shape)
    return Piece(tensor=name, dim=dim, start=start, stop=stop, shape=shape, at=at, replicas=1)


def test_a_cut_of_whole_rows_fetches_what_it_keeps(tmp_path: Path) -> None:
    tensors = {f"w{n}": torch.randn(256, 256) for n in range(4)}
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(str(tmp_path))
    parameters = [
        parameter_of(name, "float32", (128, 256), whole(name, 0, 128, 256, (128, 256)))
        for name in tensors
    ]
    plan = fetches(checkpoint, parameters)
    assert len(plan) == 4
    assert fetched_bytes(plan) == sum(one.kept_bytes for one in parameters)


def test_a_file_that_ends_early_is_named(tmp_path: Path) -> None:
    save_file({"w": torch.randn(512, 256)}, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(str(tmp_path))
    path = tmp_path / "model.safetensors"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 5000)
    parameter = parameter_of("w", "float32", (512, 256), whole("w", 0, 0, 512, (512, 256)))
    with pytest.raises(Exception, match=r"model\.safetensors") as error:
        read_sliced(checkpoint, [parameter], [raw(blank(parameter))], threads=2)
    assert type(error.value).__name__ == "TruncatedError"
