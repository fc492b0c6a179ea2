"""Chunk plans, reader threads and the ring of blocks."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_io import content

from loaders.io import readers
from loaders.io.buffers import PAGE, allocate
from loaders.io.chunks import Span, plan_chunks
from loaders.io.errors import TruncatedError
from loaders.io.pool import ReaderPool
from loaders.io.ring import make_ring, stream
from loaders.io.workers import Workers

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


# --- threads that start and end together


class Waiting(Workers):
    """Threads that wait to be stopped."""

    def __init__(self, threads: int) -> None:
        self.go = threading.Event()
        super().__init__("waiting", threads)

    def _work(self) -> None:
        self.go.wait(60)

    def _stop(self) -> None:
        self.go.set()


def test_a_host_that_allows_fewer_threads_leaves_none_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The third can't be started: the two that run end before the error is seen."""
    alive, real, started = threading.active_count(), threading.Thread.start, []

    def start(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Waiting(4).__enter__()
    assert len(started) == 2
    assert threading.active_count() == alive


def test_closing_twice_is_closing_once() -> None:
    with Waiting(2) as workers:
        workers.close()
    workers.close()
    assert not any(thread.is_alive() for thread in workers._threads)
