"""Which bytes go together to a device: every byte once, in order, within its slot or bucket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.transfer.plan import (
    ALIGN,
    Fill,
    Part,
    cut_buckets,
    plan_buckets,
    plan_fills,
    plan_whole,
)

sizes = st.lists(st.integers(0, 5000), max_size=40)


def covered(parts: list[Part], sizes: list[int]) -> None:
    """The parts make up every tensor, from its beginning to its end, once."""
    at = [0] * len(sizes)
    for part in parts:
        assert part.nbytes > 0
        assert part.start == at[part.tensor]
        at[part.tensor] += part.nbytes
    assert at == sizes


def apart(parts: tuple[Part, ...], room: int) -> None:
    end = 0
    for part in parts:
        assert part.position >= end
        end = part.position + part.nbytes
    assert end <= room


@given(sizes, st.integers(64, 3000), st.sampled_from([1, 2, 64]))
def test_fills_bring_every_byte_once(sizes: list[int], slot: int, align: int) -> None:
    fills = list(plan_fills(sizes, slot, align=align))
    covered([part for fill in fills for part in fill.parts], sizes)
    for fill in fills:
        assert fill.bucket is None
        assert fill.nbytes <= slot
        apart(fill.parts, fill.nbytes)
        assert all(part.position % align == 0 for part in fill.parts)


@given(sizes, st.integers(64, 3000))
def test_slots_are_filled_as_far_as_they_go(sizes: list[int], slot: int) -> None:
    fills = list(plan_fills(sizes, slot, align=1))
    assert all(fill.nbytes == slot for fill in fills[:-1])


@given(sizes, st.integers(64, 3000), st.sampled_from([1, 8, 64]))
def test_buckets_hold_whole_tensors_in_order(sizes: list[int], bucket: int, align: int) -> None:
    buckets = plan_buckets(sizes, bucket, align=align)
    covered([part for each in buckets for part in each.parts], sizes)
    for each in buckets:
        apart(each.parts, each.nbytes)
        assert all(part.position % align == 0 for part in each.parts)
        assert each.nbytes <= bucket or len(each.parts) == 1
    order = [part.tensor for each in buckets for part in each.parts]
    assert order == sorted(order)


@given(sizes, st.integers(64, 3000), st.integers(1, 3000))
def test_a_bucket_is_the_sum_of_its_fills(sizes: list[int], bucket: int, slot: int) -> None:
    buckets = plan_buckets(sizes, bucket, align=8)
    fills = list(cut_buckets(buckets, slot))
    covered([part for fill in fills for part in fill.parts], sizes)
    for number, each in enumerate(buckets):
        own = [fill for fill in fills if fill.bucket == number]
        assert [fill.offset for fill in own] == list(range(0, each.nbytes, slot))
        assert sum(fill.nbytes for fill in own) == each.nbytes
        places = {part.tensor: part.position for part in each.parts}
        for fill in own:
            assert fill.nbytes <= slot
            apart(fill.parts, fill.nbytes)
            for part in fill.parts:
                assert fill.offset + part.position == places[part.tensor] + part.start


@given(sizes)
def test_the_whole_is_one_bucket(sizes: list[int]) -> None:
    whole = plan_whole(sizes)
    covered(list(whole.parts), sizes)
    apart(whole.parts, whole.nbytes)
    assert all(part.position % ALIGN == 0 for part in whole.parts)


def test_the_layout_of_small_tensors_by_hand() -> None:
    assert list(plan_fills([100, 0, 30], 128, align=64)) == [
        Fill(nbytes=100, parts=(Part(tensor=0, start=0, position=0, nbytes=100),)),
        Fill(nbytes=30, parts=(Part(tensor=2, start=0, position=0, nbytes=30),)),
    ]
    assert plan_buckets([0, 0], 1024) == []
    assert [bucket.nbytes for bucket in plan_buckets([10, 5000, 10], 1024)] == [10, 5000, 10]
    assert [bucket.nbytes for bucket in plan_buckets([10, 10], 1024)] == [522]
    assert plan_whole([]).parts == ()


@pytest.mark.parametrize("room", [0, -1, 63])
def test_no_room_is_refused(room: int) -> None:
    with pytest.raises(ValueError, match="can't be aligned"):
        list(plan_fills([1], room))
    with pytest.raises(ValueError, match="can't be aligned"):
        plan_buckets([1], room)


def test_a_slot_without_a_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        list(cut_buckets(plan_buckets([1], 512), 0))
