"""A share of the files in the page cache: made, verified, kept apart, held against the device."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.measuring.children import Server
from bench.measuring.pagecache import evict, fill_partly, stretches
from bench.page.terminal import render
from bench.record.cachestate import STRETCH, Share, as_shared, cache_state, share_of
from bench.record.records import CacheRecord, Sample
from bench.record.summary import rows
from bench.run.sampling import take
from bench.words.halfwarm import device_bytes, fetched_too_much
from loaders.system.pagecalls import PAGE
from loaders.system.residency import choose_method
from tests.tiny_bench import Ground
from tests.tiny_report import NBYTES, load, made_run

MIB = 1 << 20


def test_shares_are_read() -> None:
    assert share_of("50%") == Share(fraction=0.5, stretch=STRETCH)
    assert share_of("1%@2MiB") == Share(fraction=0.01, stretch=2 * MIB)
    for other in ("cold", "warm", "none", "0%", "100%", "50", "5.5%", "50%@", "50%@x", "50%@0"):
        assert share_of(other) is None


@given(
    st.integers(0, 1 << 30), st.integers(1, 99).map(lambda part: part / 100),
    st.integers(1, 1 << 27),
)  # fmt: skip
def test_the_stretches_are_that_fraction_to_a_page(size: int, part: float, stretch: int) -> None:
    stretch = max(stretch, size // 5000)  # no more ranges than a test has time for
    found = stretches(size, part, stretch)
    pages = -(-size // PAGE)
    assert sum(-(-(end - start) // PAGE) for start, end in found) == round(part * pages)
    assert all(start % PAGE == 0 and start < end <= size for start, end in found)
    assert all(a[1] <= b[0] for a, b in pairwise(found))


def test_the_stretches_are_spread_over_the_file() -> None:
    found = stretches(256 * MIB, 0.25, 64 * MIB)
    assert found == [(n * 64 * MIB, n * 64 * MIB + 16 * MIB) for n in range(4)]


@pytest.mark.parametrize("stretch", [64 * MIB, 256 << 10])
@pytest.mark.parametrize("part", [0.25, 0.5, 0.9])
def test_exactly_that_share_is_resident(tmp_path: Path, part: float, stretch: int) -> None:
    paths = [tmp_path / name for name in ("a", "b")]
    for path, size in zip(paths, (3 * MIB, 5 * MIB + 123), strict=True):
        path.write_bytes(os.urandom(size))
    residency = choose_method(*paths)
    if residency.method is None or evict(paths, residency).remaining != 0:
        pytest.skip("what is in the page cache can't be told, or emptied, here")
    fill_partly(paths, part, stretch)
    found = residency.resident_fraction(paths)
    assert found is not None
    assert abs(found - part) < 0.005


def test_large_stretches_are_read_as_a_stream_and_what_came_too_much_is_dropped(
    tmp_path: Path,
) -> None:
    """Whole folios and single pages together are that share, wherever it begins and ends."""
    path = tmp_path / "a"
    path.write_bytes(os.urandom(4 << 20) * 17 + b"end")
    residency = choose_method(path)
    if residency.measure is None or evict([path], residency).remaining != 0:
        pytest.skip("what is in the page cache can't be told, or emptied, here")
    for part, stretch in ((0.5, 32 * MIB), (0.7, 40 * MIB), (0.3, 1 << 30)):
        evict([path], residency)
        fill_partly([path], part, stretch)
        fd = os.open(path, os.O_RDONLY)
        for start, end in stretches(path.stat().st_size, part, stretch):
            assert residency.measure(fd, start, end - start) >= end - start
        os.close(fd)
        found = residency.resident_fraction([path])
        assert found == pytest.approx(part, abs=0.001)


@pytest.mark.parametrize("resident", [0.0, 0.5, 1.0])
def test_a_share_is_mixed_whatever_was_found(resident: float) -> None:
    """Never cold or warm: it would be averaged with those."""
    assert cache_state("50%", resident, 10, 10) == "mixed"
    assert cache_state("50%", None, 10, 10) == "unverified"
    assert as_shared("50%", resident) == (resident == 0.5)
    assert not as_shared("cold", resident)


def test_a_sample_of_a_share_records_what_was_absent(tmp_path: Path) -> None:
    ground = Ground.lay(tmp_path, size=8 * MIB)
    if ground.residency.method is None or evict(ground.ready.paths, ground.residency).remaining:
        pytest.skip("what is in the page cache can't be told, or emptied, here")
    server = Server(tmp_path / "log")
    try:
        sample = take(server, ground.job("adaptive", cache="50%@1MiB"), lambda run: run(), print)
    finally:
        server.close()
    assert sample.status == "ok", sample.reason
    assert sample.cache.state == "mixed"
    assert sample.cache.resident_before == pytest.approx(0.5, abs=0.02)
    total = sum(ground.ready.sizes)
    assert sample.details["absent_bytes"] == pytest.approx(total / 2, rel=0.03)
    assert sample.verified is True


def shared(
    rate: float, number: int = 1, *, resident: float = 0.5, over: float = 1.0, loader: str = "x"
) -> Sample:
    made = load(loader, rate, number, cache="50%", state="mixed", ownership="borrowed")
    absent = round((1 - resident) * NBYTES)
    cache = CacheRecord(
        requested="50%",
        resident_before=resident,
        device_read_bytes=round(over * absent),
        state="mixed",
    )
    return replace(made, cache=cache, details={"absent_bytes": absent})


def test_shares_stand_in_a_table_of_their_own() -> None:
    run = made_run(shared(2.0), load("x", 1.0, ownership="borrowed"), shared(3.0, loader="y"))
    made = rows(run)
    assert [(row.group.cache, row.state, row.rate.median) for row in made] == [
        ("cold", "cold", 1.0),
        ("50%", "mixed", 3.0),
        ("50%", "mixed", 2.0),
    ]
    assert not any(row.apart for row in made)
    text = render(run)
    assert "50% of the files in the page cache" in text
    assert "50% resident on nvme, borrowed: y was 1.50 x as fast" in text
    assert "asked 50%" not in text


def test_a_share_that_is_not_there_is_never_averaged_with_it() -> None:
    made = rows(made_run(shared(2.0, 1), shared(8.0, 2, resident=0.9)))
    assert [(row.state, row.rate.median, row.apart) for row in made] == [
        ("mixed", 2.0, False),
        ("90 % resident", 8.0, True),
    ]


def test_what_came_from_the_device_is_held_against_what_was_absent() -> None:
    made = rows(made_run(shared(2.0, over=1.01, loader="adaptive"), shared(1.0, over=2.0)))
    (said,) = device_bytes(made)
    assert said.startswith("50% resident on nvme: 476.84 MiB were absent; ")
    assert said.endswith("of that: adaptive 1.01 x, x 2.00 x.")
    assert fetched_too_much(made) == []
    wrong = rows(made_run(shared(2.0, over=1.05, loader="adaptive")))
    (said,) = fetched_too_much(wrong)
    assert "adaptive, 50% resident on nvme: fetched 1.05 x the absent bytes" in said
    assert said in " ".join(render(made_run(shared(2.0, over=1.05, loader="adaptive"))).split())


def test_what_the_device_does_not_tell_is_not_said() -> None:
    one = shared(2.0, loader="adaptive")
    silent = replace(one, cache=replace(one.cache, device_read_bytes=None))
    made = rows(made_run(silent))
    assert device_bytes(made) == fetched_too_much(made) == []
