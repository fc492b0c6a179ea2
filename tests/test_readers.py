"""Reads of exact ranges, direct or not: every way a file system can refuse or cut them short."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_io import content

from loaders.io import readers
from loaders.io.buffers import PAGE, allocate
from loaders.io.errors import TruncatedError
from loaders.io.readers import OpenFile, read_into

SIZE = 3 * PAGE + 100  # the last block has 100 bytes


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
