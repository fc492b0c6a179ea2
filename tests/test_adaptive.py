"""The loader `adaptive`: right bytes at any residency, and nothing fetched that memory had."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tiny_loaders import Raw, Stamps, checkpoint_of, file_bytes, noise, tensor_bytes, write_shard
from tiny_ring import MIB, device_bytes, evict, fill, laps

from loaders.adaptive import Adaptive
from loaders.checkpoint.manifest import Checkpoint
from loaders.direct import Direct
from loaders.io import sources
from loaders.io.sources import AdaptiveSource, Residents
from loaders.parallel import Parallel
from loaders.system.pagecalls import PAGE, cachestat, mincore
from loaders.system.residency import Measure, choose_method

SLACK = 64 << 10  # the page that the method was tried on, the ends of files and runs
Pattern = Callable[[int], list[tuple[int, int]]]


def part(share: float) -> Pattern:
    return lambda size: [(0, int(size * share) // PAGE * PAGE)] if share else []


def every(step: int, length: int) -> Pattern:
    """`length` bytes resident out of each `step`."""
    return lambda size: [(start, min(length, size - start)) for start in range(0, size, step)]


PATTERNS = {
    "0": part(0),
    "25": part(0.25),
    "50": part(0.5),
    "75": part(0.75),
    "100": part(1.01),
    "the end": lambda size: [(size // 2 // PAGE * PAGE, size)],
    "MiB by MiB": every(2 * MIB, MIB),
    "holes of 300 KiB": every(MIB, MIB - 300 * 1024),
    "64 KiB of 512": every(512 * 1024, 64 * 1024),
    "every other page": every(2 * PAGE, PAGE),
    "a page in a MiB": every(MIB, PAGE),
    "all but a page in a MiB": every(MIB, MIB - PAGE),
}


@pytest.fixture
def big(tmp_path: Path) -> Checkpoint:
    """16 MB in two files, where the kernel tells what it fetched and what it holds."""
    checkpoint = laps(tmp_path, shards=2, tensors=8, nbytes=MIB)
    path = checkpoint.files[0].path
    if choose_method(Path(path)).method is None:
        pytest.skip("what is in the page cache can't be told here")
    evict(path)
    before = device_bytes()
    Path(path).read_bytes()
    if (
        device_bytes() - before < checkpoint.files[0].size
        or AdaptiveSource(path, None, "").notes[1:]
    ):
        pytest.skip("this file system doesn't say what it fetched, or refuses direct reads")
    return checkpoint


def arrange(checkpoint: Checkpoint, pattern: Pattern) -> int:
    """Brings the files into that state; bytes that are absent then."""
    for file in checkpoint.files:
        evict(file.path)
        for start, length in pattern(file.size):
            fill(file.path, start, length)
    return absent_bytes(checkpoint)


def absent_bytes(checkpoint: Checkpoint) -> int:
    absent = 0
    for file in checkpoint.files:
        descriptor = os.open(file.path, os.O_RDONLY)
        absent += max(file.size - cachestat_or_mincore(descriptor, file.size), 0)
        os.close(descriptor)
    return absent


def cachestat_or_mincore(descriptor: int, size: int) -> int:
    try:
        return cachestat(descriptor, 0, size)
    except OSError:
        return mincore(descriptor, 0, size)


def assert_right(loader: Direct | Parallel, checkpoint: Checkpoint) -> int:
    """Bytes that the load fetched from storage."""
    expected = {
        spec.name: file_bytes_directly(checkpoint, spec.name) for spec in checkpoint.tensors
    }
    before = device_bytes()
    found = [(name, tensor_bytes(tensor)) for name, tensor in loader.load(checkpoint, Stamps())]
    fetched = device_bytes() - before
    assert len(found) == len(expected)
    assert dict(found) == expected
    return fetched


def undisturbed(
    checkpoint: Checkpoint, pattern: Pattern, load: Callable[[], int]
) -> tuple[int, int]:
    """Bytes that were absent, and what `load` says that it fetched, of a load during which they
    stayed absent and no more came to them: a kernel may take back pages that nobody used for a
    moment (DAMON), and whoever needs them then has to fetch them."""
    for _ in range(5):
        absent = arrange(checkpoint, pattern)
        fetched = load()
        if abs(absent_bytes(checkpoint) - absent) <= SLACK:
            break
    return absent, fetched


_bytes: dict[tuple[str, str], bytes] = {}


def file_bytes_directly(checkpoint: Checkpoint, name: str) -> bytes:
    """Remembered from before the cache was arranged: looking them up would fill it."""
    return _bytes[checkpoint.root, name]


def remember(checkpoint: Checkpoint) -> None:
    for spec in checkpoint.tensors:
        _bytes[checkpoint.root, spec.name] = file_bytes(checkpoint, spec)


@pytest.mark.parametrize("method", [cachestat, mincore])
@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_c78_fetches_what_is_absent_and_nothing_else(
    pattern: Pattern, method: Measure, big: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C78: a warm file isn't read from storage again, a half-warm one by half, whatever the halves
    look like."""
    remember(big)
    monkeypatch.setattr(
        Adaptive, "open_source", lambda self: Residents({"the method": method}).open
    )
    for threads, options in ((1, {"ring_mib": 1, "block_mib": 1}), (4, {})):
        loader = Adaptive(threads, **options)
        absent, fetched = undisturbed(big, pattern, lambda loader=loader: assert_right(loader, big))
        assert fetched <= absent * 1.02 + SLACK
        assert fetched >= absent * 0.98 - SLACK
        assert [note for note in loader.notes if "page cache" in note] == []


def test_c78_direct_reads_a_warm_file_again_and_adaptive_does_not(big: Checkpoint) -> None:
    remember(big)
    for file in big.files:
        fill(file.path, 0, file.size)
    assert assert_right(Direct(2), big) >= big.tensor_bytes
    assert assert_right(Adaptive(2), big) == 0


@pytest.mark.parametrize("share", [0, 0.5, 1.01])
def test_parallel_takes_from_memory_what_is_there(share: float, big: Checkpoint) -> None:
    """Into memory that stays, in any mixture; and around the cache only what it lacks."""
    remember(big)
    loader = Parallel(3, pages="huge", block_mib=1)
    absent, fetched = undisturbed(big, part(share), lambda: assert_right(loader, big))
    assert abs(fetched - absent) <= absent * 0.02 + SLACK
    assert loader.notes == []


def test_absent_parts_stay_out_of_the_page_cache(big: Checkpoint) -> None:
    """A load around the cache leaves it to others; and doesn't depend on its room."""
    remember(big)
    arrange(big, part(0.5))
    assert_right(Adaptive(2), big)
    for file in big.files:
        descriptor = os.open(file.path, os.O_RDONLY)
        assert cachestat_or_mincore(descriptor, file.size) <= file.size * 0.5 + 2 * SLACK
        os.close(descriptor)


@pytest.mark.parametrize("cls", [Adaptive, Direct])
def test_pages_not_written_out_yet_are_right(cls: type[Direct], tmp_path: Path) -> None:
    """Direct reads see what was written a moment before, on storage or not; also in part."""
    checkpoint = laps(tmp_path)
    for file in checkpoint.files:
        evict(file.path)
        with Path(file.path).open("r+b") as opened:
            opened.seek(2 * MIB + 5)
            opened.write(noise(300_000, 9))
    loader = cls(3, block_mib=1)
    found = {name: tensor_bytes(tensor) for name, tensor in loader.load(checkpoint, Stamps())}
    assert found == {spec.name: file_bytes(checkpoint, spec) for spec in checkpoint.tensors}


def refusing(descriptor: int, offset: int, length: int) -> int:
    raise OSError(errno.ENOSYS, "Function not implemented")


def lying(descriptor: int, offset: int, length: int) -> int:
    return 0  # as cachestat does on an overlay


def late(limit: int) -> Measure:
    """A method that works when it is tried and is forbidden later."""
    calls = iter(range(limit))

    def measure(descriptor: int, offset: int, length: int) -> int:
        if next(calls, None) is None:
            raise OSError(errno.EPERM, "Operation not permitted")
        return length if offset == 0 and length <= PAGE else 0

    return measure


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ({"cachestat": refusing, "mincore": refusing}, "Function not implemented"),
        ({"cachestat": lying, "mincore": lying}, "saw 0 of"),
        ({"cachestat": late(1)}, "Operation not permitted"),
        ({"cachestat": late(5)}, "Operation not permitted"),
    ],
    ids=["ENOSYS", "an overlay", "forbidden later", "forbidden half-way"],
)
def test_where_nobody_can_tell_all_is_assumed_absent(
    methods: Mapping[str, Measure],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoint = laps(tmp_path)
    monkeypatch.setattr(Adaptive, "open_source", lambda self: Residents(methods).open)
    loader = Adaptive(2, ring_mib=1, block_mib=1)
    remember(checkpoint)
    assert_right(loader, checkpoint)
    assert [n for n in loader.notes if "assumed that nothing is in the page cache" in n]
    assert [note for note in loader.notes if said in note]


def test_the_second_method_is_used_where_the_first_lies(big: Checkpoint) -> None:
    remember(big)
    residents = Residents({"cachestat": lying, "mincore": mincore})
    for file in big.files:
        fill(file.path, 0, file.size)
        measure, reason = residents.method(file.path)
        assert measure is mincore
        assert "cachestat: saw 0" in reason


def test_unexpected_errors_of_the_method_are_raised(tmp_path: Path) -> None:
    def broken(descriptor: int, offset: int, length: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    specs = write_shard(tmp_path / "x.safetensors", {"w": Raw("U8", [9], b"123456789")})
    checkpoint = checkpoint_of(tmp_path, {"x.safetensors": specs})
    source = AdaptiveSource(checkpoint.files[0].path, broken, "")
    try:
        with pytest.raises(OSError, match="Input/output error"):
            source.read(memoryview(bytearray(PAGE)), 0, 9)
    finally:
        source.close()


def test_refused_advice_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    checkpoint = laps(tmp_path)
    remember(checkpoint)
    loader = Adaptive(2)
    monkeypatch.setattr(
        Adaptive, "open_source", lambda self: lambda path: AdaptiveSource(path, cachestat, "")
    )
    monkeypatch.setattr(sources.os, "posix_fadvise", refuse)
    assert_right(loader, checkpoint)
    assert [note for note in loader.notes if "read-ahead isn't under control" in note]
