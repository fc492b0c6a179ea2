"""Lines of two streams, and where they end a stage."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.watch.output import LONGEST, Arrived, Splitter, Stream, lines_of
from bench.watch.reader import Reader
from bench.watch.stages import STAGES, Stages, mark


def split(*chunks: bytes, stream: Stream = "stdout") -> list[bytes]:
    splitter = Splitter()
    pieces = [Arrived(stream=stream, time=float(at), data=one) for at, one in enumerate(chunks)]
    end = Arrived(stream=stream, time=9e9, data=b"")
    return [line for one in (*pieces, end) for line in lines_of(splitter.feed(one))]


def test_lines_end_with_a_line_feed_a_carriage_return_or_both() -> None:
    assert split(b"a\nb\r\nc\rd") == [b"a\n", b"b\r\n", b"c\r", b"d"]


def test_a_line_in_pieces_comes_when_its_end_does() -> None:
    splitter = Splitter()
    assert splitter.feed(Arrived(stream="stdout", time=1.0, data=b"in two ")) == b""
    assert splitter.feed(Arrived(stream="stderr", time=2.0, data=b"between\n")) == b"between\n"
    assert splitter.feed(Arrived(stream="stdout", time=3.0, data=b"pieces\n")) == b"in two pieces\n"


def test_a_line_without_an_end_is_kept_in_bounded_memory() -> None:
    splitter = Splitter()
    for at in range(40):
        assert splitter.feed(Arrived(stream="stdout", time=float(at), data=b"x" * LONGEST)) == b""
    (line,) = lines_of(splitter.feed(Arrived(stream="stdout", time=41.0, data=b"\n")))
    assert len(line) <= LONGEST


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=10))
def test_no_byte_is_lost_wherever_it_is_cut(data: bytes, cuts: list[int]) -> None:
    ends = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    chunks = [data[a:b] for a, b in pairwise(ends)]
    lines = split(*[chunk for chunk in chunks if chunk])
    assert b"".join(lines) == data
    assert all(line.rstrip(b"\r\n").count(b"\n") == 0 for line in lines)


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_nothing_that_is_printed_raises(lines: list[bytes]) -> None:
    stages, reader = Stages(), Reader()
    for at, line in enumerate(lines):
        stages.feed(line, float(at))
        reader.feed(line + b"\n", float(at))
    assert reader.record().status in ("incomplete", "failed", "ready")
    assert stages.until(99.0)[-1].end >= 0


BEGIN = b"INFO Starting to load model x..."
TOOK = b"INFO Loading weights took 2.10 seconds"
MODEL = b"INFO Model loading took 1.25 GiB memory and 2.5 seconds"
AVAILABLE = b"INFO Available KV cache memory: 1.00 GiB"
TOKENS = b"INFO GPU KV cache size: 32,768 tokens"
CAPTURE = b"INFO Graph capturing finished in 3 secs, took 0.10 GiB"
INIT = b"INFO init engine (profile, create kv cache, warmup model) took 4.50 s"
READY = b"INFO:     Application startup complete."


def staged(*lines: tuple[float, bytes], end: float = 100.0) -> list[tuple[str, float, float]]:
    stages = Stages()
    for time, line in lines:
        stages.feed(line, time)
    found = stages.until(end)
    for one, following in pairwise(found):
        assert one.end == following.begin
    assert found[0].begin == 0
    return [(one.name, one.begin, one.end) for one in found]


def test_a_whole_start_has_six_stages() -> None:
    lines = (
        (5.0, BEGIN), (8.0, TOOK), (9.0, MODEL), (12.0, AVAILABLE), (12.5, TOKENS),
        (16.0, CAPTURE), (17.0, INIT), (19.0, READY),
    )  # fmt: skip
    assert staged(*lines) == [
        ("start", 0.0, 5.0),
        ("weights", 5.0, 9.0),
        ("profiling", 9.0, 12.0),
        ("kv_pool", 12.0, 12.5),
        ("warmup", 12.5, 17.0),
        ("server", 17.0, 19.0),
    ]


def test_a_stage_lasts_until_its_slowest_worker() -> None:
    lines = ((1.0, BEGIN), (1.1, BEGIN), (3.0, TOOK), (7.0, TOOK), (8.0, MODEL), (9.0, AVAILABLE))
    assert staged(*lines)[1:3] == [("weights", 1.0, 8.0), ("profiling", 8.0, 9.0)]


def test_a_late_worker_does_not_reopen_what_is_over() -> None:
    lines = ((1.0, BEGIN), (3.0, TOOK), (5.0, AVAILABLE), (5.5, TOKENS), (6.0, TOOK), (7.0, INIT))
    assert staged(*lines)[1:3] == [("weights", 1.0, 3.0), ("profiling", 3.0, 5.0)]


def test_a_drafter_s_load_is_part_of_the_weights() -> None:
    lines = ((1.0, BEGIN), (3.0, TOOK), (3.1, BEGIN), (4.0, TOOK), (4.1, MODEL), (6.0, AVAILABLE))
    assert staged(*lines)[1] == ("weights", 1.0, 4.1)


def test_weights_that_say_no_end_last_until_the_next_stage_s_line() -> None:
    assert staged((1.0, BEGIN), (9.0, TOKENS), (9.5, INIT), (10.0, READY)) == [
        ("start", 0.0, 1.0),
        ("weights", 1.0, 9.0),
        ("warmup", 9.0, 9.5),
        ("server", 9.5, 10.0),
    ]


def test_a_stage_that_a_later_one_s_line_ended_says_so() -> None:
    """Random weights are loaded without a closing line: what follows may lie in that stage."""
    stages = Stages()
    for time, line in ((1.0, BEGIN), (9.0, TOKENS), (9.5, INIT), (10.0, READY)):
        stages.feed(line, time)
    told = {one.name: one.explained for one in stages.until(10.0)}
    assert told == {"start": True, "weights": False, "warmup": True, "server": True}
    silent = Stages()
    for time, line in ((8.0, MODEL), (9.0, READY)):
        silent.feed(line, time)
    assert [one.explained for one in silent.until(9.0)] == [False, True]


def test_without_graphs_there_is_no_such_stage_but_a_warm_up() -> None:
    lines = ((1.0, BEGIN), (2.0, MODEL), (3.0, TOKENS), (4.0, READY))
    assert [name for name, _, _ in staged(*lines)] == ["start", "weights", "kv_pool", "server"]


def test_nothing_said_is_one_stage_whose_end_no_line_told() -> None:
    (only,) = Stages().until(7.0)
    assert (only.name, only.begin, only.end, only.explained) == ("start", 0.0, 7.0, False)


def test_after_readiness_no_line_bounds_anything() -> None:
    assert staged((1.0, BEGIN), (2.0, READY), (3.0, BEGIN), (9.0, MODEL))[-1][2] == 2.0


@given(st.lists(st.sampled_from([BEGIN, TOOK, MODEL, AVAILABLE, TOKENS, CAPTURE, INIT, READY])))
def test_stages_cover_the_time_in_order_whatever_comes(lines: list[bytes]) -> None:
    found = staged(*((float(at + 1), line) for at, line in enumerate(lines)))
    names = [name for name, _, _ in found]
    assert names == sorted(set(names), key=STAGES.index)
    assert all(begin <= end for _, begin, end in found)


@pytest.mark.parametrize("line", [b"", b"\xff\xfe\x00", b"INFO Loading weights", b"x" * 70_000])
def test_what_bounds_nothing_is_no_mark(line: bytes) -> None:
    assert mark(line) is None
