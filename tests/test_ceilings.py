"""The ceilings, each in a child of its own on real files: bytes and sums are those of the files."""

from __future__ import annotations

import dataclasses
import os
import pickle
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from bench.measuring.ceilings import READERS, Outcome
from bench.measuring.child import Stopwatch
from bench.measuring.children import Server
from bench.measuring.consume import placed_sum
from bench.measuring.pieces import Pieces, Tally, one_piece, pieces_of
from bench.measuring.verify import read_reference
from bench.record.records import Sample
from bench.run.sampling import Job
from tests.tiny_bench import MIB, Ground
from tests.tiny_loaders import Raw, checkpoint_of, write_shard

PAGES = ["4k", "huge"]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground.lay(tmp_path_factory.mktemp("ceilings"))


@pytest.fixture(scope="module")
def server(ground: Ground) -> Iterator[Server]:
    server = Server(ground.work / "children.log")
    yield server
    server.close()


def file_bytes(ground: Ground) -> int:
    return sum(ground.ready.sizes)


def reading(
    ground: Ground, reader: str, *, cache: str = "warm", direct: bool, pages: str, block: int = MIB
) -> Job:
    return ground.ceiling(reader, cache=cache, direct=direct, block=block, threads=2, pages=pages)


def assert_partition(sample: Sample) -> None:
    """Open, allocate, read and consume are the total, and none is negative."""
    seconds = sample.seconds
    parts = [seconds.open, seconds.allocate, seconds.read, seconds.consume]
    assert all(part is not None and part >= 0 for part in parts)
    assert sum(part or 0.0 for part in parts) == pytest.approx(seconds.total, abs=1e-6)


@pytest.mark.parametrize("pages", PAGES)
@pytest.mark.parametrize(
    ("reader", "direct", "ownership"),
    [
        ("direct-ring", True, "borrowed"),
        ("cache-ring", False, "borrowed"),
        ("owned-read", True, "owned"),
        ("owned-read", False, "owned"),
    ],
)
def test_every_byte_of_every_file_arrives(
    server: Server, ground: Ground, reader: str, direct: bool, ownership: str, pages: str
) -> None:
    """Files whose sizes aren't multiples of 4096, with O_DIRECT too."""
    assert all(size % 4096 for size in ground.ready.sizes)
    job = reading(ground, reader, direct=direct, pages=pages)
    sample = ground.sample(server, job)
    assert (sample.status, sample.reason, sample.verified) == ("ok", None, True)
    assert sample.bytes == file_bytes(ground)
    assert sample.ownership == ownership
    assert sample.details["direct"] is direct
    assert sample.details["pages"] == pages
    assert_partition(sample)


def test_direct_reads_are_cold_and_leave_the_files_so(server: Server, ground: Ground) -> None:
    if not ground.charged:
        pytest.skip("this file system doesn't charge the reader for what it fetches")
    job = reading(ground, "direct-ring", cache="cold", direct=True, pages="4k")
    sample = ground.sample(server, job)
    assert (sample.status, sample.cache.state) == ("ok", "cold")
    assert sample.cache.device_read_bytes is not None
    assert sample.cache.device_read_bytes >= file_bytes(ground) - 4096 * len(ground.ready.sizes)
    if "fell_back" not in sample.details:
        assert ground.residency.resident_fraction(ground.ready.paths) == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("reader", ["direct-ring", "cache-ring", "owned-read"])
def test_a_sum_that_is_not_the_files_is_a_fault(
    server: Server, ground: Ground, reader: str, tmp_path: Path
) -> None:
    job = reading(ground, reader, direct=reader == "direct-ring", pages="4k")
    wrong = max(ground.ready.checkpoint.tensors, key=lambda spec: spec.nbytes).name
    sums = {**ground.ready.reference.sums, wrong: ground.ready.reference.sums[wrong] ^ 1}
    path = tmp_path / "other.reference"
    path.write_bytes(pickle.dumps(dataclasses.replace(ground.ready.reference, sums=sums)))
    job = dataclasses.replace(job, args={**job.args, "reference_path": str(path)})
    sample = ground.sample(server, job)
    assert (sample.status, sample.verified) == ("failed", False)
    assert sample.reason == f"{reader}: wrong bytes arrived: {wrong}"


def test_a_file_that_was_cut_off_is_a_failure(
    server: Server, ground: Ground, tmp_path: Path
) -> None:
    for reader in ("cache-ring", "owned-read", "direct-ring"):
        victim = Ground.lay(tmp_path / reader)
        path = victim.ready.paths[-1]
        os.truncate(path, path.stat().st_size - 5000)
        job = reading(victim, reader, direct=reader == "direct-ring", pages="4k")
        sample = victim.sample(server, job)
        assert sample.status == "failed"
        assert f"{path}: expected at least" in (sample.reason or "")


@pytest.mark.parametrize(
    ("reader", "options", "ownership"),
    [
        ("memory-read", {}, "mapped"),
        ("memory-copy", {"copiers": 1}, None),
        ("memory-copy", {"copiers": 3}, None),
        ("first-touch", {"pages": "4k"}, None),
        ("first-touch", {"pages": "huge"}, None),
    ],
)
def test_ceilings_of_memory(
    server: Server, ground: Ground, reader: str, options: dict[str, object], ownership: str | None
) -> None:
    nbytes = 8 * MIB + 4096
    sample = ground.sample(server, ground.ceiling(reader, cache="none", bytes=nbytes, **options))
    assert (sample.status, sample.reason) == ("ok", None)
    assert (sample.bytes, sample.ownership) == (nbytes, ownership)
    assert (sample.verified, sample.verified_reason) == (None, "no file is read")
    assert (sample.cache.state, sample.cache.resident_before) == ("none", None)
    assert_partition(sample)


def test_small_pages_are_really_small(server: Server, ground: Ground) -> None:
    """The other way can't be promised: a fragmented host grants huge pages in part or never."""
    job = ground.ceiling("first-touch", cache="none", bytes=8 * MIB, pages="4k")
    assert ground.sample(server, job).details["huge_kb"] == 0
    job = reading(ground, "owned-read", direct=False, pages="4k")
    assert ground.sample(server, job).details["huge_kb"] == 0


def test_doing_nothing_is_a_sample_too(server: Server, ground: Ground) -> None:
    sample = ground.sample(server, ground.ceiling("nothing", cache="none"))
    assert (sample.status, sample.bytes) == ("ok", 0)
    assert_partition(sample)


def work(reader: str, files: list[Pieces], **options: object) -> Outcome:
    """One run here, without a child."""
    outcome = Outcome()
    with ExitStack() as stack:
        given = {"block": 4096, "threads": 3, "pages": "4k", "direct": False, **options}
        READERS[reader](stack, files, 2, given)(Stopwatch(), outcome)
    return outcome


@pytest.mark.parametrize("reader", ["cache-ring", "owned-read"])
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("sizes", [[1], [0], [0, 5, 0], [4095, 4096, 4097], [7] * 20, [100_003]])
def test_c77_files_of_any_size(tmp_path: Path, reader: str, direct: bool, sizes: list[int]) -> None:
    files = []
    for number, size in enumerate(sizes):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(os.urandom(size))
        edges = sorted({0, min(5, size), size // 2, size}) if size else [0, 0]
        names = [f"{number}/{edge}" for edge in edges[:-1]]
        files.append(Pieces(path=str(path), edges=edges, names=names))
    outcome = work(reader, files, direct=direct)
    assert outcome.tally.nbytes == sum(sizes)
    for one in files:
        data = Path(one.path).read_bytes()
        for name, (begin, end) in zip(one.names, pairwise(one.edges), strict=True):
            assert outcome.tally.sums[name] == placed_sum(memoryview(data[begin:end]))


def test_every_byte_of_a_file_is_in_one_piece_and_every_tensor_is_one(tmp_path: Path) -> None:
    """As they lie, in whatever order they are listed; a tied one, one without bytes and one that
    isn't a run of bytes have no piece of their own."""
    specs = write_shard(
        tmp_path / "x",
        {
            "a": Raw("U8", [5], b"12345"),
            "empty": Raw("U8", [0], b""),
            "b": Raw("BF16", [3], b"abcdef"),
            "c": Raw("U8", [4], b"6789"),
        },
    )
    a, empty, b, c = specs
    tied, strided = replace(a, name="tied"), replace(c, name="strided", offset=None)
    (tmp_path / "nothing").touch()
    listed = {"x": [c, b, a, tied, empty, strided], "nothing": []}
    checkpoint = checkpoint_of(tmp_path, listed)
    pieces, nothing = pieces_of(checkpoint)
    assert (nothing.edges, nothing.names) == ([0, 0], [None])
    assert pieces.names == [None, "a", "b", "c"]
    assert pieces.edges == [0, a.offset, b.offset, c.offset, checkpoint.files[0].size]
    reference = read_reference(replace(checkpoint, tensors=(a, b, c)))
    data = memoryview(bytearray((tmp_path / "x").read_bytes()))
    for step in (1, 3, 8, 4096):  # pieces that arrive in any lengths
        tally = Tally()
        for start in range(0, len(data), step):
            tally.add(pieces, start, data[start : start + step])
        assert tally.sums == reference.sums
        assert tally.nbytes == len(data)
    tally.sums["b"] ^= 1
    assert tally.faults(reference.sums, [pieces]) == ["wrong bytes arrived: b"]
    assert Tally().faults(reference.sums, [pieces]) == ["wrong bytes arrived: a, b, c"]


def test_what_is_not_known_is_one_piece() -> None:
    assert one_piece("x", 9) == Pieces(path="x", edges=[0, 9], names=[None])
    assert Tally().faults({}, [one_piece("x", 9)]) == []


def test_an_error_in_a_copying_thread_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    def broken(into: object, source: object) -> None:
        raise MemoryError("no page for you")

    monkeypatch.setattr(np, "copyto", broken)
    with pytest.raises(MemoryError, match="no page for you"):
        work("memory-copy", [], bytes=100_000, copiers=2)


def test_every_stamp_is_of_one_load() -> None:
    watch = Stopwatch()
    with watch.stamp("open"):
        pass
    parts = watch.seconds(1.0)
    assert parts["total"] == 1.0
    assert sum(parts.values()) == pytest.approx(2.0)
    watch.spent["open"] = 2.0
    with pytest.raises(RuntimeError, match="the stamps exceed the total"):
        watch.seconds(1.0)
