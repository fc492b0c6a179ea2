"""Nothing that a log may hold makes the parser raise; how it is cut into blocks changes nothing."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.explain import failures, lines
from bench.explain.build import build
from bench.explain.lines import open_log
from bench.explain.parse import parse
from bench.explain.patterns import PATTERNS

LOGS = Path(__file__).parent / "logs"
ALL = sorted([*LOGS.glob("*.log"), *LOGS.glob("own/*.log")])
BYTES = [path.read_bytes() for path in ALL]


def record(data: bytes) -> dict[str, Any]:
    return build(parse(io.BytesIO(data).read)).to_json()


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(BYTES), st.data())
def test_a_log_cut_and_spliced_anywhere_never_raises(log: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(log)))
    other = data.draw(st.sampled_from(BYTES))
    noise = data.draw(st.binary(max_size=40))
    found = record(log[:cut] + noise + other[data.draw(st.integers(0, len(other))) :])
    assert found["status"] in ("ready", "failed", "incomplete")


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_interleaved_lines_of_two_logs_never_raise(data: st.DataObject) -> None:
    first, second = (data.draw(st.sampled_from(BYTES)).splitlines(keepends=True) for _ in range(2))
    order = data.draw(st.lists(st.booleans(), max_size=120))
    mixed = [(first if left else second).pop(0) for left in order if (first if left else second)]
    record(b"".join(mixed))


WORDS = [
    b"INFO", b"ERROR 13-45 99:99:99 [x.py:1] ", b"INFO 02-29 23:59:60 [x.py:1] ", b"(Worker_TP",
    b"(EngineCore_DP0 pid=1) ", b"Loading weights took ", b"1.2.3.4 seconds", b"\x1b[36m", b"\r",
    b"\n", b"# GPU blocks: ,,,", b"Initializing a V1 LLM engine (v) with config: a='", b"'}])(",
    b"Loading safetensors checkpoint shards: 999% Completed | 9,9.9/0 [::9:9<", b"\xff\xfe\x00",
    b'{"log":"x\\n","time":3}', b"Model loading took . GiB and 5 seconds", b"0,0", b"rank 9",
    b"non-default args: {'model': {'a': [", b"Application startup complete", b"Traceback",
    b"ValueError: ", b"GPU KV cache size: , tokens", b"2024-99-99T99:99:99Z ", b"\xe2\x96\x88",
    b"Graph capturing finished in 1,000 secs, took -1 GiB", b"init engine took 1.5.2 s",
]  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(st.lists(st.one_of(st.sampled_from(WORDS), st.binary(max_size=12)), max_size=40))
def test_pieces_of_lines_in_any_order_never_raise(pieces: list[bytes]) -> None:
    record(b"".join(pieces))


@pytest.mark.parametrize("size", [1, 7, 100, 4096])
def test_the_size_of_reads_changes_nothing(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for log in BYTES[:: 8 if size < 100 else 1]:
        source = io.BytesIO(log)
        small = build(parse(lambda _, source=source: source.read(size))).to_json()
        assert small == record(log)


def test_a_line_without_end_is_bounded() -> None:
    sizes = []

    def read(size: int) -> bytes:
        sizes.append(size)
        return b"x" * size if len(sizes) < 40 else b""

    kept = list(lines.blocks(read))
    assert [len(block.data) for block in kept] == [lines.LONGEST]


def test_what_follows_an_overlong_line_is_read() -> None:
    log = BYTES[0]
    padded = b"INFO " + b"y" * (3 * lines.BLOCK) + b"\n" + log
    found, plain = record(padded), record(log)
    assert found["phases"] == plain["phases"]
    assert found["evidence"]["weights_gb"] == [plain["evidence"]["weights_gb"][0] + 1]


def test_gzip_also_cut_and_utf16(tmp_path: Path) -> None:
    log = BYTES[0]
    packed = gzip.compress(log)
    for name, data in (
        ("whole.gz", packed),
        ("cut.gz", packed[: len(packed) // 2]),
        ("damaged.gz", packed[:200] + b"\x00\xff" * 50 + packed[300:]),
        ("utf16.log", b"\xff\xfe" + log.decode().encode("utf-16-le")),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        with open_log(str(path)) as (read, live):
            assert not live
            found = build(parse(read)).to_json()
        if name in ("whole.gz", "utf16.log"):
            assert found == record(log)
        else:
            assert found["status"] == "incomplete"


def test_carriage_returns_are_lines_but_are_not_counted() -> None:
    log = b"a\rb\rINFO 01-01 00:00:00 [x.py:1] Loading weights took 1.5 seconds\r\n" * 2
    assert record(log)["evidence"]["weights_seconds"] == [1]
    assert record(b"\r\n" * 9 + log)["evidence"]["weights_seconds"] == [10]


def test_every_needle_is_of_its_pattern() -> None:
    """A pattern whose needle isn't in its own wording would never be tried."""
    log = b"\n".join(BYTES)
    for pattern in PATTERNS:
        hits = [line for line in log.splitlines() if pattern.regex.search(line.decode())]
        assert all(pattern.needle in line for line in hits), pattern
    assert len({pattern.needle for pattern in PATTERNS} | set(failures.NEEDLES)) < 45


def test_lines_of_a_live_source_without_a_time_get_their_arrival(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pipe: the first line stamps 10:00:00, readiness arrives 12.5 s later without a time."""
    pieces = [
        (100.0, b"INFO 01-01 10:00:00 [api_server.py:1] vLLM API server version 0.9.0\n"),
        (103.0, b"INFO 01-01 10:00:03 [core.py:1] Initializing a V1 LLM engine (v0.9.0) with "),
        (103.25, b"config: model='m'\n"),
        (112.5, b"INFO:     Application startup complete.\n"),
    ]
    now = [0.0]

    def read(_: int) -> bytes:
        if not pieces:
            return b""
        now[0], data = pieces.pop(0)
        return data

    monkeypatch.setattr(lines.time, "monotonic", lambda: now[0])
    found = build(parse(read, live=True))
    assert found.phases.startup_wall_secs == 12.25  # 3 s by the stamps, 9.25 s by arrival
    assert found.model == "m"


def test_a_log_without_times_has_no_wall_time_unless_it_came_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = [b"Loading model weights took 1.5 GB\n", b"Loading weights took 20 seconds\n",
           b"Application startup complete.\n"]  # fmt: skip
    assert record(b"".join(log))["phases"]["startup_wall_secs"] is None
    for step, wall in ((0.001, None), (15.0, 30.0)):  # replayed at once; live
        now, left = [0.0], list(log)

        def read(
            _: int, left: list[bytes] = left, now: list[float] = now, by: float = step
        ) -> bytes:
            now[0] += by
            return left.pop(0) if left else b""

        monkeypatch.setattr(lines.time, "monotonic", lambda now=now: now[0])
        assert build(parse(read, live=True)).phases.startup_wall_secs == wall
