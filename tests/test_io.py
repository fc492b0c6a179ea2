"""Buffers, reads of exact ranges, chunk plans, reader threads and the ring."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loaders.io import buffers, readers
from loaders.io.buffers import HUGE_PAGE, PAGE, allocate, page_kind, touch
from loaders.io.chunks import Span, plan_chunks
from loaders.io.errors import TruncatedError
from loaders.io.pool import ReaderPool
from loaders.io.readers import OpenFile, read_into
from loaders.io.ring import make_ring, stream

SIZE = 3 * PAGE + 100  # the last block has 100 bytes


def content(nbytes: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(nbytes)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.bin"
    path.write_bytes(content(SIZE))
    return path


def read(path: Path, offset: int, length: int, *, direct: bool) -> tuple[bytes, OpenFile]:
    with allocate(length + 2 * PAGE) as buffer, OpenFile(str(path), direct=direct) as opened:
        view = buffer.view(offset % PAGE, length)
        read_into(opened, view, offset)
        return bytes(view), opened


# --- buffers


def test_a_buffer_is_aligned_writable_and_zero() -> None:
    for huge, align in ((None, PAGE), (False, PAGE), (True, HUGE_PAGE)):
        with allocate(5 * PAGE + 3, huge=huge) as buffer:
            assert buffer.nbytes == 5 * PAGE + 3
            assert buffer.address % align == 0
            assert buffer.array().ctypes.data == buffer.address
            assert not buffer.array().any()
            buffer.array()[-1] = 7
            assert buffer.view(5 * PAGE, 3)[2] == 7


def test_a_buffer_refuses_views_outside_itself() -> None:
    with allocate(100) as buffer:
        for offset, nbytes in ((-1, 1), (0, 101), (100, 1), (50, -1)):
            with pytest.raises(ValueError, match="outside a buffer of 100"):
                buffer.view(offset, nbytes)
        assert len(buffer.view(100)) == 0
    with pytest.raises(ValueError, match="closed"):
        buffer.view()


def test_a_buffer_of_no_bytes() -> None:
    with allocate(0) as buffer:
        assert len(buffer.view()) == 0
        touch(buffer, 2)


def test_memory_that_cant_be_had_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match=r"can't map .* smaller checkpoint"):
        allocate(1 << 62)


def mapped(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(edge, 16) for edge in line.split(" ", 1)[0].split("-"))
        if low <= address < high:
            return True
    return False


@pytest.mark.parametrize("hold", ["tensor", "array", "view"])
def test_memory_goes_back_at_close_or_with_its_last_holder(hold: str) -> None:
    free = allocate(64 << 20)
    assert free.close()
    assert free.close()
    assert not mapped(free.address)
    buffer = allocate(64 << 20)
    view = buffer.view(16, 64)
    holders: dict[str, object] = {
        "tensor": torch.frombuffer(view, dtype=torch.float32),
        "array": np.frombuffer(view, dtype=np.uint8),
        "view": view,
    }
    kept = holders.pop(hold)
    holders.clear()
    del view
    assert not buffer.close()
    assert mapped(buffer.address)
    del kept
    assert not mapped(buffer.address)


@pytest.mark.parametrize("how", ["store", "populate"])
@pytest.mark.parametrize("threads", [1, 3])
def test_touch_makes_every_page_resident(how: buffers.Touch, threads: int) -> None:
    with allocate(9 * HUGE_PAGE + PAGE + 5, huge=False) as buffer:
        assert page_kind(buffer).resident_kb < buffer.nbytes // 1024
        assert touch(buffer, threads, how=how) in ("store", "populate")
        kind = page_kind(buffer)
        assert kind.resident_kb * 1024 >= buffer.nbytes
        assert kind.mapped_kb >= kind.resident_kb


def test_touch_falls_back_on_older_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_MADV_POPULATE_WRITE", 9999)
    with allocate(HUGE_PAGE) as buffer:
        assert touch(buffer, 2, how="populate") == "store"
        assert page_kind(buffer).resident_kb * 1024 >= HUGE_PAGE


def test_page_kind_proves_huge_pages() -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("this host has transparent huge pages switched off")
    with allocate(8 * HUGE_PAGE, huge=True) as buffer:
        assert buffer.refused is None
        touch(buffer)
        assert page_kind(buffer).huge_kb > 0
    with allocate(8 * HUGE_PAGE, huge=False) as buffer:
        touch(buffer)
        kind = page_kind(buffer)
        assert kind.huge_kb == 0 or kind.mapped_kb > 8 * HUGE_PAGE // 1024  # a neighbour's


def test_page_kind_counts_only_the_buffers_mappings(tmp_path: Path) -> None:
    with allocate(4 * PAGE) as buffer:
        low, high = buffer.address, buffer.address + 4 * PAGE
        smaps = tmp_path / "smaps"
        smaps.write_text(
            f"{low - PAGE:x}-{low:x} rw-p 00000000 00:00 0\n"
            "Size: 4 kB\nRss: 4 kB\nAnonHugePages: 2048 kB\nVmFlags: rd wr mr-mw\n"
            f"{low:x}-{low + PAGE:x} rw-p 00000000 00:00 0   [anon: a-b]\n"
            "Size: 4 kB\nRss: 4 kB\nAnonHugePages: 0 kB\n"
            f"{low + PAGE:x}-{high:x} rw-p 00000000 00:00 0\n"
            "Size: 12 kB\nRss: 8 kB\nAnonHugePages: 4 kB\n"
            f"{high:x}-{high + PAGE:x} rw-p 00000000 00:00 0\nSize: 4 kB\nRss: 4 kB\n"
        )
        kind = page_kind(buffer, smaps)
    assert (kind.mapped_kb, kind.resident_kb, kind.huge_kb) == (16, 12, 4)


def test_a_kernel_without_huge_pages_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers.mmap, "MADV_HUGEPAGE", 9999)
    with allocate(PAGE, huge=True) as buffer:
        assert buffer.refused is not None
        assert "MADV_HUGEPAGE" in buffer.refused


# --- reads


RANGES = [
    (0, SIZE),
    (0, PAGE),
    (PAGE, PAGE),
    (PAGE, 2 * PAGE + 100),
    (3 * PAGE, 100),
    (8, SIZE - 8),
]
RANGES += [(0, 0), (SIZE, 0), (5, 10), (PAGE - 3, 6), (1000, 3 * PAGE - 1000), (SIZE - 1, 1)]
RANGES += [(3 * PAGE + 8, 92), (8, 2 * PAGE), (1, SIZE - 2)]


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize(("offset", "length"), RANGES)
def test_c77_c79_any_range_arrives_as_it_is(
    file: Path, offset: int, length: int, direct: bool
) -> None:
    """C77: the last block has 100 bytes. C79: headers and tensors off by 8, by 1, across blocks."""
    found, opened = read(file, offset, length, direct=direct)
    assert (
        hashlib.sha256(found).digest()
        == hashlib.sha256(content(SIZE)[offset : offset + length]).digest()
    )
    assert not direct or opened.direct or opened.fell_back


def test_c79_memory_that_isnt_congruent_falls_back(file: Path) -> None:
    """C79: 8 bytes off in memory but not in the file: never a shifted answer."""
    with allocate(2 * SIZE) as buffer, OpenFile(str(file), direct=True) as opened:
        opened.direct, opened.fell_back = True, None  # as on a file system that allows it
        opened.memory_align = opened.offset_align = 512
        view = buffer.view(8, SIZE)
        read_into(opened, view, 0)
        assert bytes(view) == content(SIZE)
        assert not opened.direct
        assert "aligned" in (opened.fell_back or "")


def test_c77_open_that_refuses_direct(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def fake(path: str, flags: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument", path)
        return real(path, flags)

    monkeypatch.setattr(readers.os, "open", fake)
    found, opened = read(file, 0, SIZE, direct=True)
    assert found == content(SIZE)
    assert not opened.direct
    assert opened.fell_back == "open with O_DIRECT: Invalid argument"


def direct_only(opened: list[OpenFile], act: Callable[[int], int]) -> Callable[..., int]:
    """A preadv that gives `act(length)` bytes for as long as the file is a direct one."""
    real = os.preadv

    def fake(fd: int, views: list[memoryview], offset: int) -> int:
        if not opened[0].direct:
            return real(fd, views, offset)
        wanted = act(len(views[0]))
        with Path(opened[0].path).open("rb") as plain:
            plain.seek(offset)
            return plain.readinto(views[0][:wanted])

    return fake


def refuse(code: int) -> Callable[[int], int]:
    def act(length: int) -> int:
        raise OSError(code, os.strerror(code))

    return act


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        pytest.param(refuse(errno.EINVAL), "Invalid argument", id="EINVAL"),
        pytest.param(refuse(errno.EOPNOTSUPP), "not supported", id="EOPNOTSUPP"),
        pytest.param(lambda length: 0, "0 bytes at offset", id="nothing"),
        pytest.param(lambda length: min(length, 100), "100 bytes at offset", id="odd"),
    ],
)
@pytest.mark.parametrize(("offset", "length"), [(0, SIZE), (8, SIZE - 8), (3 * PAGE, 100)])
def test_c77_reads_that_refuse_direct(
    file: Path,
    act: Callable[[int], int],
    reason: str,
    offset: int,
    length: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C77: open works and reads don't: EINVAL, nothing at all, or an end inside a block."""
    opened: list[OpenFile] = []
    monkeypatch.setattr(readers.os, "preadv", direct_only(opened, act))
    with allocate(SIZE + PAGE) as buffer, OpenFile(str(file), direct=True) as handle:
        handle.direct, handle.fell_back = True, None
        opened.append(handle)
        view = buffer.view(offset % PAGE, length)
        read_into(handle, view, offset)
        assert bytes(view) == content(SIZE)[offset : offset + length]
        if length == 100 and reason.startswith("100"):
            assert handle.direct  # all that was wanted
        else:
            assert reason in (handle.fell_back or "")
            assert not handle.direct


def test_c77_a_real_fall_back_reads_through_the_page_cache(file: Path) -> None:
    with OpenFile(str(file), direct=True) as opened:
        if not opened.direct:
            pytest.skip(f"no direct reads here: {opened.fell_back}")
        assert opened.memory_align > 0
        assert opened.offset_align > 0
        opened.fall_back("because")
        opened.fall_back("again")
        assert opened.fell_back == "because"
        odd = bytearray(1001)
        read_into(opened, memoryview(odd)[1:], 3)
        assert odd[1:] == content(SIZE)[3:1003]


def test_direct_reads_go_on_after_a_short_one(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[OpenFile] = []
    monkeypatch.setattr(readers.os, "preadv", direct_only(opened, lambda length: min(length, PAGE)))
    with allocate(SIZE + PAGE) as buffer, OpenFile(str(file), direct=True) as handle:
        if not handle.direct:
            pytest.skip(f"no direct reads here: {handle.fell_back}")
        opened.append(handle)
        view = buffer.view(0, SIZE)
        read_into(handle, view, 0)
        assert bytes(view) == content(SIZE)
        assert handle.direct


def test_short_reads_are_continued(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.preadv
    monkeypatch.setattr(
        readers.os, "preadv", lambda fd, views, offset: real(fd, [views[0][:7]], offset)
    )
    assert read(file, 3, 1000, direct=False)[0] == content(SIZE)[3:1003]


def test_interrupted_reads_are_repeated(tmp_path: Path) -> None:
    """EINTR: a timer fires all the time while a large file is read."""
    path = tmp_path / "large.bin"
    path.write_bytes(content(64 << 20))
    fired = []
    before = signal.signal(signal.SIGALRM, lambda *_: fired.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        found, _ = read(path, 5, (64 << 20) - 5, direct=False)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert fired
    assert found == content(64 << 20)[5:]


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize(("offset", "length"), [(0, SIZE + 1), (SIZE - 1, 2), (SIZE + PAGE, 5)])
def test_an_end_before_the_end_is_named(file: Path, offset: int, length: int, direct: bool) -> None:
    with pytest.raises(TruncatedError, match=r"data\.bin") as caught:
        read(file, offset, length, direct=direct)
    assert (caught.value.expected, caught.value.found) == (offset + length, SIZE)
    assert f"expected at least {offset + length} bytes, found {SIZE}" in str(caught.value)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.ESTALE])
@pytest.mark.parametrize("direct", [False, True])
def test_other_errors_name_file_and_offset(
    file: Path, code: int, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(readers.os, "preadv", fail)
    with pytest.raises(OSError, match="offset 4096") as caught:
        read(file, PAGE, PAGE, direct=direct)
    assert caught.value.errno == code
    assert caught.value.filename == str(file)


def test_a_missing_file_names_itself(tmp_path: Path) -> None:
    for direct in (False, True):
        with pytest.raises(FileNotFoundError, match=r"absent\.bin"):
            OpenFile(str(tmp_path / "absent.bin"), direct=direct)


@pytest.mark.parametrize("direct", [False, True])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_random_ranges(direct: bool, data: st.DataObject, tmp_path_factory: object) -> None:
    path = Path(tmp_path_factory.getbasetemp()) / "ranges.bin"  # type: ignore[attr-defined]
    if not path.exists():
        path.write_bytes(content(SIZE))
    offset = data.draw(st.integers(0, SIZE))
    length = data.draw(st.integers(0, SIZE - offset))
    assert read(path, offset, length, direct=direct)[0] == content(SIZE)[offset : offset + length]


# --- chunks

SPANS = st.lists(
    st.builds(
        lambda offset, length: Span(path="f", offset=offset, length=length),
        st.integers(0, 20 * PAGE),
        st.one_of(st.just(0), st.integers(0, 40 * PAGE)),
    ),
    max_size=6,
)


@given(spans=SPANS, pages=st.integers(1, 9))
def test_chunks_cover_exactly_and_stay_congruent(spans: list[Span], pages: int) -> None:
    """Every byte of every span once, in order; no chunk over a block; inner edges on multiples of
    the block; memory that is congruent for a span is so for each of its chunks."""
    block = pages * PAGE
    chunks = list(plan_chunks(spans, block))
    for number, span in enumerate(spans):
        position = span.offset
        memory = 7 * PAGE + span.offset % PAGE
        for chunk in [chunk for chunk in chunks if chunk.span == number]:
            assert chunk.offset == position
            assert chunk.start == position - span.offset
            assert 0 < chunk.length <= block
            assert position == span.offset or position % block == 0
            assert (memory + chunk.start) % PAGE == chunk.offset % PAGE
            position += chunk.length
        assert position == span.offset + span.length
    assert [chunk.span for chunk in chunks] == sorted(chunk.span for chunk in chunks)


@pytest.mark.parametrize("block", [0, -4096, 1000, 4097])
def test_blocks_that_arent_pages_are_refused(block: int) -> None:
    with pytest.raises(ValueError, match="block_bytes must be a multiple of"):
        list(plan_chunks([Span(path="f", offset=0, length=5)], block))


# --- reader threads


@pytest.fixture
def spans(tmp_path: Path) -> list[Span]:
    """Files of all sizes, read from offsets of all kinds."""
    made = []
    for number, (size, offset) in enumerate(
        [(10 * PAGE + 3, 0), (5, 5), (7 * PAGE, 8), (100, 99), (64 * PAGE + 77, 1234)]
    ):
        path = tmp_path / f"f{number}.bin"
        path.write_bytes(content(size, number))
        made.append(Span(path=str(path), offset=offset, length=size - offset))
    return made


def expected(span: Span) -> bytes:
    with Path(span.path).open("rb") as opened:
        opened.seek(span.offset)
        return opened.read(span.length)


@pytest.fixture
def leaves_nothing() -> Iterator[None]:
    before = {entry.name for entry in Path("/proc/self/fd").iterdir()}
    alive = threading.active_count()
    yield
    assert threading.active_count() == alive
    assert {entry.name for entry in Path("/proc/self/fd").iterdir()} == before


def destinations(spans: list[Span]) -> list[memoryview]:
    return [allocate(span.offset % PAGE + span.length).view(span.offset % PAGE) for span in spans]


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 8])
def test_a_pool_fills_every_span(spans: list[Span], threads: int, direct: bool) -> None:
    memory = destinations(spans)
    with ReaderPool(spans, memory, threads=threads, block_bytes=PAGE, direct=direct) as pool:
        pool.wait(4, 10)
        assert bytes(memory[4][:10]) == expected(spans[4])[:10]
        for number, span in enumerate(spans):
            pool.wait(number)
            assert bytes(memory[number]) == expected(span)


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("threads", [1, 4])
def test_the_number_of_threads_is_the_number_asked_for(
    spans: list[Span], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are in a read at the same time, and no other."""
    inside, real = threading.Barrier(threads, timeout=60), os.preadv
    seen: set[int] = set()

    def fake(fd: int, views: list[memoryview], offset: int) -> int:
        if threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            inside.wait()
        return real(fd, views, offset)

    monkeypatch.setattr(readers.os, "preadv", fake)
    with ReaderPool(spans, destinations(spans), threads=threads, block_bytes=PAGE) as pool:
        for number in range(len(spans)):
            pool.wait(number)
    assert len(seen) == threads
    assert threading.get_ident() not in seen


@pytest.mark.usefixtures("leaves_nothing")
def test_the_first_error_comes_at_once(spans: list[Span]) -> None:
    """Also to whoever waits for another file, and for bytes that would never come."""
    Path(spans[2].path).write_bytes(b"short")
    with ReaderPool(spans, destinations(spans), threads=2, block_bytes=PAGE) as pool:
        with pytest.raises(TruncatedError, match=r"f2\.bin"):
            pool.wait(4)
        with pytest.raises(TruncatedError, match=r"f2\.bin"):
            pool.wait(2)


@pytest.mark.usefixtures("leaves_nothing")
def test_leaving_a_pool_early_stops_it(spans: list[Span], monkeypatch: pytest.MonkeyPatch) -> None:
    reads, real, go = [], os.preadv, threading.Event()

    def slow(fd: int, views: list[memoryview], offset: int) -> int:
        reads.append(offset)
        go.wait(60)
        return real(fd, views, offset)

    monkeypatch.setattr(readers.os, "preadv", slow)
    with ReaderPool(spans, destinations(spans), threads=2, block_bytes=PAGE) as pool:
        while len(reads) < 2:
            threading.Event().wait(0.001)
        pool._source.stop()  # as close() does first; only then are the two let go
        go.set()
    assert len(reads) == 2


def test_a_slow_open_doesnt_hold_up_other_files(spans: list[Span], tmp_path: Path) -> None:
    """A file that hangs in open (here a pipe without a writer) leaves the others readable."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    jobs = [Span(path=str(pipe), offset=0, length=5), *spans]
    memory = destinations(jobs)
    with ReaderPool(jobs, memory, threads=2, block_bytes=PAGE) as pool:
        for number in range(1, len(jobs)):
            pool.wait(number)
            assert bytes(memory[number]) == expected(jobs[number])
        os.close(os.open(pipe, os.O_WRONLY))
        with pytest.raises(OSError, match="pipe"):
            pool.wait(0)


def test_destinations_must_fit() -> None:
    with pytest.raises(ValueError, match="4 bytes into memory of 5"):
        ReaderPool([Span(path="f", offset=0, length=4)], [memoryview(bytearray(5))], threads=1)


@pytest.mark.usefixtures("leaves_nothing")
def test_c77_a_pool_says_which_files_fell_back(
    spans: list[Span], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def fake(path: str, flags: int) -> int:
        if flags & os.O_DIRECT and path.endswith("f2.bin"):
            raise OSError(errno.EINVAL, "Invalid argument", path)
        return real(path, flags & ~os.O_DIRECT)

    monkeypatch.setattr(readers.os, "open", fake)
    memory = destinations(spans)
    with ReaderPool(spans, memory, threads=2, direct=True) as pool:
        for number, span in enumerate(spans):
            pool.wait(number)
            assert bytes(memory[number]) == expected(span)
    assert "open with O_DIRECT" in pool.fell_back[spans[2].path]


# --- the ring


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize(("threads", "slots"), [(1, 1), (2, 3), (4, 2)])
def test_a_ring_delivers_every_byte_once(
    spans: list[Span], threads: int, slots: int, direct: bool
) -> None:
    ring = make_ring(slots, 2 * PAGE, huge=False)
    for _ in range(2):  # it can serve again
        parts: dict[tuple[int, int], bytes] = {}
        fell_back: dict[str, str] = {}
        for block in stream(
            spans,
            ring,
            threads=threads,
            block_bytes=2 * PAGE,
            direct=direct,
            fell_back=fell_back,
        ):
            assert (block.span, block.start) not in parts
            parts[block.span, block.start] = bytes(block.data)
        for number, span in enumerate(spans):
            mine = [parts[key] for key in sorted(parts) if key[0] == number]
            assert b"".join(mine) == expected(span)
        if not direct:
            assert fell_back == {}
    del block
    assert all(slot.close() for slot in ring)


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_ring_that_is_left_early_stops(spans: list[Span], taken: int) -> None:
    blocks = stream(spans, make_ring(3, PAGE, huge=False), threads=4, block_bytes=PAGE)
    for _ in range(taken):
        next(blocks)
    blocks.close()  # type: ignore[attr-defined]


@pytest.mark.usefixtures("leaves_nothing")
def test_an_error_ends_a_ring(spans: list[Span]) -> None:
    Path(spans[3].path).unlink()
    with pytest.raises(FileNotFoundError, match=r"f3\.bin"):
        list(stream(spans, make_ring(2, PAGE, huge=False), threads=3, block_bytes=PAGE))


def test_a_ring_that_is_too_small_is_refused(spans: list[Span]) -> None:
    with pytest.raises(ValueError, match="too small"):
        next(stream(spans, make_ring(2, PAGE), threads=1, block_bytes=2 * PAGE))
    with pytest.raises(ValueError, match="no slot"):
        next(stream(spans, [], threads=1, block_bytes=PAGE))
