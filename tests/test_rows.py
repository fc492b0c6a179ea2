"""Large tensors in runs of rows: the cutting, the loaders that give them, and the proof of it."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_bench import Ground
from tiny_loaders import Raw, Stamps, checkpoint_of, file_bytes, noise, tensor_bytes, tricky
from tiny_loaders import write_shard as shard
from tiny_ring import MIB, evict, fill, laps

from bench.measuring.child import Stopwatch, load_once, prove
from bench.measuring.children import Server
from bench.measuring.consume import byte_sum, rows_sum
from bench.measuring.rows import Joined, RowsError
from bench.measuring.verify import read_reference
from loaders.adaptive import Adaptive
from loaders.checkpoint.manifest import Checkpoint, TensorSpec
from loaders.contract import Rows
from loaders.direct import Direct
from loaders.io.rows import LANE, parts_of

BOTH = [pytest.param(Direct, id="direct"), pytest.param(Adaptive, id="adaptive")]


def spec_of(shape: tuple[int, ...], itemsize: int = 1, offset: int | None = 100) -> TensorSpec:
    kind = {1: "uint8", 2: "bfloat16", 4: "float32"}[itemsize]
    nbytes = prod(shape) * itemsize
    return TensorSpec(name="t", dtype=kind, shape=shape, file="f", offset=offset, nbytes=nbytes)


@given(
    shape=st.lists(st.integers(0, 40), max_size=3).map(tuple),
    itemsize=st.sampled_from([1, 2, 4]),
    most=st.integers(1, 3000),
)
def test_parts_are_the_tensor_again(shape: tuple[int, ...], itemsize: int, most: int) -> None:
    spec = spec_of(shape, itemsize)
    parts = list(parts_of([spec], most))
    assert sum(part.nbytes for _, part in parts) == spec.nbytes
    row, at = prod(shape[1:]) * itemsize, spec.offset
    for number, (first, part) in enumerate(parts):
        assert (part.name, part.dtype, part.offset) == (spec.name, spec.dtype, at)
        assert part.offset - spec.offset == first * row or len(parts) == 1
        assert (part.offset - spec.offset) % LANE == 0
        assert part.nbytes == prod(part.shape) * itemsize
        # No shorter than it may be, but for the last one.
        if part.nbytes > most and len(parts) > 1:
            assert part.shape[0] <= LANE
        if number < len(parts) - 1:
            assert part.nbytes + LANE * row > most
        at += part.nbytes


@pytest.mark.parametrize(
    "spec", [spec_of(()), spec_of((0, 8)), spec_of((999, 9), offset=None), spec_of((10,))]
)
def test_what_has_no_rows_to_cut_stays_whole(spec: TensorSpec) -> None:
    assert list(parts_of([spec], 16)) == [(0, spec)]


def small(shape: tuple[int, ...], seed: int) -> Raw:
    return Raw("BF16", shape, noise(2 * prod(shape), seed))


@pytest.fixture
def large(tmp_path: Path) -> Checkpoint:
    """Tensors far larger than the ring, of one and more dimensions, with small ones between."""
    raws = {
        "embed": small((2500, 1000), 1),
        "norm": small((1000,), 2),
        "flat": small((1_000_001,), 3),
        "experts": small((3, 350, 999), 4),
        "scalar": Raw("F32", [], b"\0\0\x80\x3f"),
        "empty": Raw("BF16", [0, 5], b""),
        "wide": small((1, 1_000_000), 5),  # one row: stays whole
        "odd": Raw("U8", [500_001, 3], noise(1_500_003, 6)),
    }
    return checkpoint_of(tmp_path, {"x.safetensors": shard(tmp_path / "x.safetensors", raws)})


def joined(checkpoint: Checkpoint, arriving: Iterator[Rows]) -> dict[str, bytes]:
    found: dict[str, dict[int, bytes]] = {spec.name: {} for spec in checkpoint.tensors}
    came = dict.fromkeys(found, 0)
    for name, first, rows in arriving:
        assert first not in found[name]
        assert rows.is_contiguous()
        came[name] += rows.shape[0] if rows.dim() else 1
        found[name][first] = tensor_bytes(rows)
    for spec in checkpoint.tensors:
        assert came[spec.name] == (spec.shape[0] if spec.shape else 1)
    return {
        name: b"".join(parts[first] for first in sorted(parts)) for name, parts in found.items()
    }


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_every_row_is_right_where_half_is_in_memory(share: float, large: Checkpoint) -> None:
    expected = {spec.name: file_bytes(large, spec) for spec in large.tensors}
    (file,) = large.files
    evict(file.path)
    fill(file.path, 0, int(file.size * share))
    loader = Adaptive(2, rows=True, block_mib=1)
    assert joined(large, loader.load_rows(large, Stamps())) == expected


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("cls", BOTH)
def test_every_row_is_right(cls: type[Direct], threads: int, large: Checkpoint) -> None:
    loader = cls(threads, rows=True, block_mib=1)
    found = joined(large, loader.load_rows(large, Stamps()))
    assert found == {spec.name: file_bytes(large, spec) for spec in large.tensors}
    assert loader.memory_bytes(large) < cls(threads, block_mib=1).memory_bytes(large)


@pytest.mark.parametrize("cls", BOTH)
def test_c16_c79_tricky_tensors_in_rows(cls: type[Direct], tmp_path: Path) -> None:
    checkpoint = tricky(tmp_path)
    found = joined(checkpoint, cls(2, rows=True, block_mib=1).load_rows(checkpoint, Stamps()))
    assert found == {spec.name: file_bytes(checkpoint, spec) for spec in checkpoint.tensors}


def test_the_ring_stays_small_whatever_the_tensors(tmp_path: Path) -> None:
    sizes = {"a": 40 * MIB, "b": 3, "c": 9 * MIB}
    specs, at = [], 64
    for name, nbytes in sizes.items():
        specs.append(replace(spec_of((nbytes,)), name=name, offset=at, file="x"))
        at += nbytes
    (tmp_path / "x").touch()
    checkpoint = checkpoint_of(tmp_path, {"x": specs})
    assert Direct(2, rows=True).memory_bytes(checkpoint) == 16 * MIB
    assert Direct(2, rows=True, readers=4).memory_bytes(checkpoint) == 32 * MIB
    assert Direct(2, rows=True, ring_mib=24).memory_bytes(checkpoint) == 24 * MIB
    assert Direct(2).memory_bytes(checkpoint) > 40 * MIB


@pytest.mark.parametrize("cls", BOTH)
def test_leaving_rows_early_ends_every_thread(cls: type[Direct], large: Checkpoint) -> None:
    alive = threading.active_count()
    arriving = cls(3, rows=True, block_mib=1).load_rows(large, Stamps())
    next(arriving)
    arriving.close()  # type: ignore[attr-defined]
    assert threading.active_count() == alive


def test_a_loader_without_rows_gives_whole_tensors(tmp_path: Path) -> None:
    checkpoint = laps(tmp_path, shards=1)
    loader = Direct(2)
    assert not loader.in_rows
    assert joined(checkpoint, loader.load_rows(checkpoint, Stamps())) == {
        spec.name: file_bytes(checkpoint, spec) for spec in checkpoint.tensors
    }


@pytest.mark.parametrize("cls", BOTH)
def test_timed_in_rows_and_proved(cls: type[Direct], large: Checkpoint) -> None:
    reference = read_reference(large)
    load = load_once(cls(2, rows=True, block_mib=1), large, Stopwatch())
    assert {seen.name: (seen.byte_sum, seen.shape, seen.oddity) for seen in load.seen} == {
        spec.name: (reference.sums[spec.name], spec.shape, None) for spec in large.tensors
    }
    assert prove(cls(2, rows=True, block_mib=1), large, reference, load.seen) == []


class Wrong(Direct):
    """Changes what its parent gives."""

    def change(self, number: int, rows: Rows) -> Iterator[Rows]:
        yield rows

    def load_rows(self, checkpoint: Checkpoint, stamp: object) -> Iterator[Rows]:
        for number, rows in enumerate(super().load_rows(checkpoint, stamp)):  # type: ignore[arg-type]
            yield from self.change(number, rows)


class Corrupt(Wrong):
    def change(self, number: int, rows: Rows) -> Iterator[Rows]:
        if number == 3:
            rows[2].view(-1).view(torch.uint8)[77] ^= 1
        yield rows


class Missing(Wrong):
    def change(self, number: int, rows: Rows) -> Iterator[Rows]:
        if number != 3:
            yield rows


class Twice(Wrong):
    def change(self, number: int, rows: Rows) -> Iterator[Rows]:
        yield rows
        if number == 3:
            yield rows


class Short(Wrong):
    def change(self, number: int, rows: Rows) -> Iterator[Rows]:
        if rows[0] != "odd" or rows[1] == 0:
            yield rows


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (Corrupt, "embed: wrong bytes"),
        (Missing, "rows of embed from .* expected"),
        (Twice, "rows of embed from .* expected"),
        (Short, "rows of odd from .* expected, got none"),
    ],
)
def test_a_loader_that_gives_wrong_rows_is_caught(
    cls: type[Direct], said: str, large: Checkpoint
) -> None:
    reference = read_reference(large)
    right = load_once(Direct(2, rows=True, block_mib=1), large, Stopwatch())
    faults = prove(cls(2, rows=True, block_mib=1), large, reference, right.seen)
    assert [fault for fault in faults if re.search(said, fault)]
    if cls is not Corrupt:
        with pytest.raises(RowsError, match=said):
            load_once(cls(2, rows=True, block_mib=1), large, Stopwatch())


@settings(max_examples=25)
@given(rows=st.integers(1, 30), width=st.sampled_from([8, 4096, 28672, 65536, 100_000]))
def test_sums_and_digests_of_parts_are_those_of_the_whole(rows: int, width: int) -> None:
    whole = torch.randint(0, 255, (rows, width), dtype=torch.uint8)
    name = "t"
    spec = replace(spec_of((rows, width)), name=name)
    checkpoint = Checkpoint(root="", origin="", format="safetensors", files=(), tensors=(spec,))
    both = Joined(checkpoint, digests=True)
    seen = None
    for first, part in parts_of([spec], 3 * width):
        assert seen is None
        seen = both.add(name, first, whole[first : first + part.shape[0]].clone())
    both.finish()
    assert seen is not None
    assert (seen.byte_sum, seen.shape, seen.nbytes) == (
        byte_sum(whole),
        (rows, width),
        whole.nbytes,
    )
    assert both.digest == xxhash.xxh3_128_hexdigest(whole.numpy())


@settings(max_examples=25)
@given(rows=st.integers(2, 30), chance=st.randoms(use_true_random=False))
def test_parts_of_several_tensors_may_come_in_any_order(rows: int, chance: random.Random) -> None:
    wholes = {name: torch.randint(0, 255, (rows, 999), dtype=torch.uint8) for name in "ab"}
    specs = tuple(replace(spec_of((rows, 999)), name=name) for name in wholes)
    checkpoint = Checkpoint(root="", origin="", format="safetensors", files=(), tensors=specs)
    parts = list(parts_of(specs, 8 * 999))
    chance.shuffle(parts)
    both = Joined(checkpoint, digests=True)
    for first, part in parts:
        arrived = wholes[part.name][first : first + part.shape[0]].clone()
        seen = both.add(part.name, first, arrived)
        arrived.zero_()  # its memory is used again
        if seen is not None:
            whole = wholes[seen.name]
            assert (seen.byte_sum, seen.shape) == (byte_sum(whole), (rows, 999))
            assert both.digest == xxhash.xxh3_128_hexdigest(whole.numpy())
    both.finish()


def test_a_part_that_comes_early_comes_once() -> None:
    spec = spec_of((32, 8))
    checkpoint = Checkpoint(root="", origin="", format="safetensors", files=(), tensors=(spec,))
    both = Joined(checkpoint)
    both.add("t", 16, torch.zeros((8, 8), dtype=torch.uint8))
    with pytest.raises(RowsError, match="rows of t from 0 expected, got t from 16"):
        both.add("t", 16, torch.zeros((8, 8), dtype=torch.uint8))
    with pytest.raises(RowsError, match="rows of t from 0 expected, got none"):
        both.finish()


def test_a_part_without_bytes_adds_nothing() -> None:
    assert rows_sum(torch.zeros(0, dtype=torch.uint8), 16) == 0


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground.lay(tmp_path_factory.mktemp("rows"), size=16 * MIB)


@pytest.fixture(scope="module")
def server(ground: Ground) -> Iterator[Server]:
    server = Server(ground.work / "children.log")
    yield server
    server.close()


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("loader", ["direct", "adaptive"])
def test_a_sample_says_what_its_ring_was_made_of(
    server: Server, ground: Ground, loader: str, rows: bool
) -> None:
    """In bytes, from smaps; small pages are told apart from huge ones."""
    for pages in ("4k", "huge"):
        job = ground.job(loader, rows=rows, block_mib=1, pages=pages)
        sample = ground.sample(server, job)
        assert (sample.status, sample.reason, sample.verified) == ("ok", None, True)
        assert sample.bytes == ground.payload
        assert sample.details["ring_bytes"] >= MIB
        huge = sample.details["ring_huge_bytes"]
        assert huge == 0 if pages == "4k" else huge <= sample.details["ring_bytes"] + 4 * MIB


def test_a_sample_says_what_owned_memory_was_made_of(server: Server, ground: Ground) -> None:
    sample = ground.sample(server, ground.job("parallel", pages="4k"))
    assert sample.status == "ok"
    assert ground.payload <= sample.details["owned_bytes"] < ground.payload + MIB
    assert sample.details["owned_huge_bytes"] == 0
    assert "ring_bytes" not in sample.details
