"""The ring's plan: every byte arrives, nothing that is still in use is overwritten."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaders.io.layout import Extent, Place, Read, Ring, plan_places, plan_reads, ring_for

ALIGN = 16


@dataclass
class Case:
    extents: list[Extent]
    ring: Ring


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Several files of tensors with gaps, empties and giants; blocks from one unit on; a ring of
    any wished size, also one that is too small for a single tensor."""
    block = ALIGN * draw(st.integers(1, 6))
    extents: list[Extent] = []
    for file in range(draw(st.integers(0, 4))):
        offset = draw(st.integers(0, 100))
        for _ in range(draw(st.integers(1, 12))):
            offset += draw(st.sampled_from([0, 0, 0, 1, 7, 40, 300, 1000]))
            nbytes = draw(st.sampled_from([0, 1, 2, 15, 16, 17, 64, 100, 333, 1500]))
            extents.append(Extent(file=file, offset=offset, nbytes=nbytes))
            offset += nbytes
    wanted = draw(st.sampled_from([1, 200, 1000, 4000, 1 << 20]))
    return Case(extents, ring_for(extents, wanted=wanted, block=block, align=ALIGN))


def plan(case: Case) -> tuple[list[Read], list[Place]]:
    reads = list(plan_reads(case.extents, case.ring))
    places = list(plan_places(case.extents, case.ring))
    assert len(places) == len(case.extents)
    return reads, places


@settings(max_examples=300)
@given(cases())
def test_reads_are_aligned_and_within_block_and_ring(case: Case) -> None:
    ring = case.ring
    reads, _ = plan(case)
    for read in reads:
        assert read.offset % ALIGN == read.position % ALIGN == read.length % ALIGN == 0
        assert 0 < read.length <= ring.block
        assert 0 <= read.position <= ring.nbytes - read.length
        assert read.length - ALIGN < read.needed <= read.length
    files = [read.file for read in reads]
    assert files == sorted(files)
    assert [read.file for read in reads if read.last] == sorted(set(files))


@settings(max_examples=200)
@given(case=cases(), chance=st.randoms(use_true_random=False))
def test_in_any_order_every_tensor_is_whole_and_every_file_ends_once(
    case: Case, chance: random.Random
) -> None:
    """The ring was laid out for another order of the same tensors."""
    chance.shuffle(case.extents)
    reads, _ = plan(case)
    ends = {read.file: index for index, read in enumerate(reads)}
    assert {read.file: index for index, read in enumerate(reads) if read.last} == ends
    assert sum(read.last for read in reads) == len(ends)
    assert_whole(case)


@st.composite
def disordered(draw: st.DrawFn) -> Case:
    """Tensors of one or two files in an order of their own, mostly near that of the file, through
    rings that are as small as they may be: neighbours then share blocks, whoever comes first."""
    block = ALIGN * draw(st.integers(1, 6))
    extents: list[Extent] = []
    for file in range(draw(st.integers(1, 2))):
        offset = draw(st.integers(0, 100))
        members = []
        for _ in range(draw(st.integers(1, 14))):
            nbytes = draw(st.sampled_from([0, 1, 8, 16, 30, 64, 100, 250]))
            members.append(Extent(file=file, offset=offset, nbytes=nbytes))
            offset += nbytes + draw(st.sampled_from([0, 0, 0, 3, 40]))
        far = draw(st.sampled_from([2, 4, 14]))
        ranks = [number + draw(st.integers(0, far)) for number in range(len(members))]
        extents += [
            one for _, one in sorted(zip(ranks, members, strict=True), key=lambda it: it[0])
        ]
    wanted = draw(st.sampled_from([1, 1, 400, 1000]))
    return Case(extents, ring_for(extents, wanted=wanted, block=block, align=ALIGN))


@settings(max_examples=300)
@given(disordered())
def test_near_the_order_of_the_file_no_block_is_given_up_that_is_still_wanted(case: Case) -> None:
    assert_whole(case)


def test_a_block_is_kept_for_a_tensor_that_is_wanted_after_later_ones() -> None:
    """The second and the third of a run are wanted the other way round; the third lies in the block
    of the first."""
    extents = [
        Extent(file=0, offset=offset, nbytes=nbytes)
        for offset, nbytes in [(0, 16), (32, 32), (16, 16), (64, 64)]
    ]
    reads = list(plan_reads(extents, Ring(nbytes=64, block=32, align=16)))
    assert [(read.offset, read.position, read.after) for read in reads] == [
        (0, 0, 0),
        (32, 32, 0),
        (64, 0, 3),  # over bytes of the third tensor
        (96, 32, 3),
    ]


@settings(max_examples=300)
@given(cases())
def test_every_tensor_is_whole_when_it_is_said_to_be_there(case: Case) -> None:
    assert_whole(case)


def assert_whole(case: Case) -> None:
    """Simulates ring and consumer with the identity of each byte. Reads of the future begin as
    early as they may: whatever isn't given up must survive all of them."""
    reads, places = plan(case)
    ring: list[tuple[int, int] | None] = [None] * case.ring.nbytes
    started = 0
    for number, (extent, place) in enumerate(zip(case.extents, places, strict=True)):
        # Tensors before `number` are given up; the consumer may still hold what it waits for.
        while started < len(reads) and reads[started].after <= number:
            read = reads[started]
            for byte in range(read.length):
                ring[read.position + byte] = (read.file, read.offset + byte)
            started += 1
        assert started >= place.reads, "it waits for a read that waits for it"
        found = ring[place.position : place.position + extent.nbytes]
        assert found == [(extent.file, extent.offset + byte) for byte in range(extent.nbytes)]
    assert started == len(reads)


@settings(max_examples=200)
@given(cases())
def test_a_tensor_waits_for_its_own_reads_and_no_later_ones(case: Case) -> None:
    reads, places = plan(case)
    for extent, place in zip(case.extents, places, strict=True):
        if extent.nbytes:
            last = reads[place.reads - 1]
            end = extent.offset + extent.nbytes
            assert last.file == extent.file
            assert last.offset < end <= last.offset + last.needed
        else:
            assert place.reads == 0


@settings(max_examples=200)
@given(cases())
def test_reads_may_begin_in_the_order_given(case: Case) -> None:
    reads, _ = plan(case)
    afters = [read.after for read in reads]
    assert afters == sorted(afters)
    assert all(after <= len(case.extents) for after in afters)


@settings(max_examples=200)
@given(cases())
def test_little_is_read_twice_or_for_nothing(case: Case) -> None:
    """At most the units at both ends of each run, short gaps, and a unit for each lap."""
    reads, _ = plan(case)
    total = sum(read.length for read in reads)
    asked = sum(extent.nbytes for extent in case.extents)
    runs = sum(extent.nbytes > 0 for extent in case.extents)
    gap = min(16 * ALIGN, case.ring.block)
    assert total <= asked + runs * (2 * ALIGN + gap)


def test_small_neighbours_share_reads() -> None:
    """1000 scalars and vectors cost as many reads as their bytes need blocks."""
    extents = [Extent(file=0, offset=100 + 10 * number, nbytes=10) for number in range(1000)]
    ring = ring_for(extents, wanted=1 << 20, block=4096, align=ALIGN)
    assert len(list(plan_reads(extents, ring))) == 3


def test_large_gaps_are_skipped_and_small_ones_read_through() -> None:
    block = 1 << 20
    far = [
        Extent(file=0, offset=0, nbytes=100),
        Extent(file=0, offset=4096, nbytes=100),
        Extent(file=0, offset=10 << 20, nbytes=100),
    ]
    ring = ring_for(far, wanted=4 << 20, block=block, align=4096)
    reads = list(plan_reads(far, ring))
    assert [(read.offset, read.length) for read in reads] == [(0, 8192), (10 << 20, 4096)]


def test_the_next_file_is_read_before_the_last_tensor_is_given_up() -> None:
    """Many small shards and one large one are read the same way."""
    extents = [Extent(file=file, offset=64, nbytes=1000) for file in range(40)]
    ring = ring_for(extents, wanted=8192, block=512, align=ALIGN)
    reads = list(plan_reads(extents, ring))
    assert [read.file for read in reads if read.after == 0][-1] >= 6
    assert [read.last for read in reads] == [
        index + 1 == len(reads) or reads[index + 1].file != read.file
        for index, read in enumerate(reads)
    ]


def test_the_ring_grows_with_the_largest_and_with_neighbours_where_that_pays() -> None:
    def ring(*sizes: int, wanted: int = 1000) -> int:
        offsets = [sum(sizes[:number]) for number in range(len(sizes))]
        extents = [
            Extent(file=0, offset=offset, nbytes=size)
            for offset, size in zip(offsets, sizes, strict=True)
        ]
        return ring_for(extents, wanted=wanted, block=32, align=16).nbytes

    assert ring(*[16] * 100) == 1024  # the next multiple of the block
    assert ring(16, 16) == 96  # no more than there is to read, and two blocks
    alone = 1888  # 1600, an eighth, two blocks, in whole blocks
    assert ring(1600, *[16] * 100) == alone
    assert ring(16, 1600, 1600, 16) == alone  # one giant waits for one
    assert ring(*[1600] * 10) == 3264  # many would wait for many
    assert ring(*[1600, 800] * 10) == 2464
    assert ring(1600, 1600, *[600] * 20) == 2272  # a giant and its small neighbour
    assert ring() == 64
    assert ring(0, 0) == 64


@pytest.mark.parametrize(("block", "align"), [(0, 16), (24, 16), (32, 0)])
def test_blocks_that_are_no_multiple_are_refused(block: int, align: int) -> None:
    with pytest.raises(ValueError, match="multiple of align"):
        ring_for([], wanted=1000, block=block, align=align)


def test_a_terabyte_is_planned_bit_by_bit() -> None:
    """The plan of a large checkpoint isn't made before the first read, nor kept."""
    extents = [Extent(file=n, offset=0, nbytes=1 << 30) for n in range(1000)]
    ring = ring_for(extents, wanted=1 << 20, block=4 << 20, align=4096)
    reads = plan_reads(extents, ring)
    assert next(reads).file == 0
    assert next(plan_places(extents, ring)) == Place(position=0, reads=256)
