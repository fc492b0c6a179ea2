"""The order in which absent and resident tensors are read: all of them, and evenly mixed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_loaders import Stamps
from tiny_ring import MIB, evict, fill, laps

from loaders.adaptive import Adaptive
from loaders.io.interleave import LITTLE, Turn, in_order, interleave
from loaders.io.shares import resident_bytes
from loaders.io.sources import Residents
from loaders.system.residency import choose_method

amounts = st.lists(
    st.tuples(st.sampled_from([0, 1, 7, 100, 5000]), st.sampled_from([0, 1, 7, 100, 5000])),
    max_size=60,
)


def turns_of(items: list[tuple[int, int]], stint: int = 1) -> list[Turn]:
    return interleave([a for a, _ in items], [r for _, r in items], stint=stint)


@given(items=amounts, stint=st.integers(1, 20_000))
def test_each_comes_once_and_each_stream_keeps_the_order(
    items: list[tuple[int, int]], stint: int
) -> None:
    turns = turns_of(items, stint)
    assert sorted(turn.number for turn in turns) == list(range(len(items)))
    for stream in (0, 1):
        walk = [turn.number for turn in turns if turn.stream == stream]
        assert walk == sorted(walk)


@given(items=amounts, stint=st.integers(1, 20_000))
def test_both_sums_come_to_their_ends_together(items: list[tuple[int, int]], stint: int) -> None:
    """At no time is one further ahead than by a stint and the item that it ended with."""
    absent, resident = sum(a for a, _ in items), sum(r for _, r in items)
    if min(absent, resident) <= LITTLE * (absent + resident):
        return
    most = max(max(a / absent, r / resident) for a, r in items)
    most += stint / min(absent, resident)
    done_absent = done_resident = 0.0
    for turn in turns_of(items, stint):
        a, r = items[turn.number]
        done_absent, done_resident = done_absent + a / absent, done_resident + r / resident
        assert abs(done_absent - done_resident) <= most + 1e-9


@given(items=amounts)
def test_where_nothing_can_be_mixed_the_order_stays(items: list[tuple[int, int]]) -> None:
    assert turns_of([(a, 0) for a, _ in items]) == in_order(len(items))
    assert turns_of([(0, r) for _, r in items]) == in_order(len(items))


@pytest.mark.parametrize("few", [1, 2])
def test_a_few_pages_of_headers_are_not_worth_turns(few: int) -> None:
    """Nor are the last absent ones of a warm file."""
    assert turns_of([(100 - few, few)] + [(100, 0)] * few) == in_order(1 + few)
    assert turns_of([(few, 100 - few)]) == in_order(1)
    mixed = turns_of([(0, 3), (97, 0)])
    assert {turn.stream for turn in mixed} == {0, 1}


def test_a_prefix_in_memory_is_spread_over_the_load() -> None:
    turns = turns_of([(0, 4)] * 4 + [(4, 0)] * 4)
    assert [turn.number for turn in turns] == [4, 0, 5, 1, 6, 2, 7, 3]
    turns = turns_of([(0, 4)] * 6 + [(4, 0)] * 2)
    assert [turn.number for turn in turns] == [6, 0, 1, 2, 7, 3, 4, 5]


def test_neighbours_stay_together_for_a_stint() -> None:
    turns = turns_of([(0, 1)] * 40 + [(1, 0)] * 40, stint=10)
    switches = sum(a.stream != b.stream for a, b in pairwise(turns))
    assert switches == 7


def test_what_each_tensor_has_in_memory(tmp_path: Path) -> None:
    """Counted in steps of 4 MiB, estimated in between."""
    checkpoint = laps(tmp_path, shards=2, tensors=4, nbytes=4 * MIB)
    first, second = checkpoint.files
    if choose_method(Path(first.path)).method is None:
        pytest.skip("what is in the page cache can't be told here")
    evict(first.path)
    evict(second.path)
    fill(first.path, 0, 8 * MIB)
    found = resident_bytes(checkpoint, Residents())
    assert found == pytest.approx([4 * MIB, 4 * MIB, 0, 0, 0, 0, 0, 0], abs=64 << 10)
    assert resident_bytes(checkpoint, Residents({})) == [0] * 8
    order = [turn.number for turn in Adaptive(2, block_mib=1).turns(checkpoint)]
    assert sorted(order) == list(range(8))
    assert 0 in order[1:4]  # behind absent ones
    assert 1 in order[4:]
    for file in checkpoint.files:
        fill(file.path, 0, file.size)
    assert Adaptive(2).turns(checkpoint) == in_order(8)


def test_headers_in_memory_double_no_ring(tmp_path: Path) -> None:
    """They were read a moment before, when the manifest was made."""
    checkpoint = laps(tmp_path, shards=2, tensors=16, nbytes=MIB)
    for file in checkpoint.files:
        if choose_method(Path(file.path)).method is None:
            pytest.skip("what is in the page cache can't be told here")
        evict(file.path)
        fill(file.path, 0, 64 << 10)
    shown: list[int] = []
    loader = Adaptive(2, block_mib=1, rows=True)
    loader.on_memory = lambda what, memory: shown.append(len(memory))
    assert sum(rows.nbytes for _, _, rows in loader.load_rows(checkpoint, Stamps()))
    assert shown == [loader.memory_bytes(checkpoint)] == [4 * MIB]
