"""Buffers: aligned memory, its first touch, and what kind of pages it lies in."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from loaders.io import ahead, buffers
from loaders.io.ahead import TouchAhead
from loaders.io.buffers import HUGE_PAGE, PAGE, allocate, page_kind, pages_under, populates, touch


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


def test_pages_under_counts_a_mapping_once(tmp_path: Path) -> None:
    with allocate(4 * PAGE) as one, allocate(4 * PAGE) as other:
        low = min(one.address, other.address)
        high = max(one.address, other.address) + 4 * PAGE
        smaps = tmp_path / "smaps"
        smaps.write_text(
            f"{low:x}-{high:x} rw-p 00000000 00:00 0\n"
            "Size: 32 kB\nRss: 20 kB\nAnonHugePages: 8 kB\n"
        )
        pieces = [one.view(), one.view(0, 0), other.view(PAGE)]
        kind = pages_under(pieces, smaps)
        assert pages_under([], smaps).mapped_kb == 0
        del pieces
    assert (kind.mapped_kb, kind.resident_kb, kind.huge_kb) == (32, 20, 8)


# --- touching ahead


@pytest.mark.parametrize("huge", [True, False])
def test_touching_ahead_gets_every_page_and_changes_none(huge: bool) -> None:
    if not populates():
        pytest.skip("this kernel has no MADV_POPULATE_WRITE")
    with allocate(9 * HUGE_PAGE + PAGE + 5, huge=huge) as buffer:
        buffer.array()[::PAGE] = 7  # what a reader has brought meanwhile
        buffer.array()[: HUGE_PAGE // 2] = 9
        with TouchAhead([buffer]) as touching:
            for thread in touching._threads:
                thread.join(60)
        assert page_kind(buffer).resident_kb * 1024 >= buffer.nbytes
        assert (buffer.array()[HUGE_PAGE // 2 :: PAGE] == 7).all()
        assert (buffer.array()[: HUGE_PAGE // 2] == 9).all()


def test_touching_ahead_ends_with_its_load(monkeypatch: pytest.MonkeyPatch) -> None:
    began, go, calls = threading.Event(), threading.Event(), []

    def slow(buffer: buffers.Buffer, begin: int, end: int) -> None:
        calls.append(begin)
        began.set()
        go.wait(60)

    monkeypatch.setattr(ahead, "populate", slow)
    monkeypatch.setattr(ahead, "populates", lambda: True)
    alive = threading.active_count()
    with allocate(64 << 20) as buffer, TouchAhead([buffer]) as touching:
        began.wait(60)
        touching._stop()  # as close() does first
        go.set()
    assert calls == [0]
    assert threading.active_count() == alive


def test_touching_ahead_keeps_its_lead_over_several_buffers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And leaves out what was reached before it came there; each buffer goes with its last page."""
    touched: list[tuple[int, int]] = []
    come = threading.Condition()

    def note(buffer: buffers.Buffer, begin: int, end: int) -> None:
        with come:
            touched.append((buffer.nbytes >> 20, begin >> 20))
            come.notify()

    monkeypatch.setattr(ahead, "populate", note)
    monkeypatch.setattr(ahead, "populates", lambda: True)
    sizes = (10 << 20, 24 << 20)
    with TouchAhead([allocate(size) for size in sizes], lead=8 << 20) as touching:
        with come:
            assert come.wait_for(lambda: len(touched) == 2, 60)
        assert touched == [(10, 0), (10, 4)]
        touching.reach(20 << 20)
        with come:
            assert come.wait_for(lambda: len(touched) == 5, 60)
        touching.reach(1 << 20)  # an older word changes nothing
        assert touched[2:] == [(10, 8), (24, 8), (24, 12)]
        touching.reach(34 << 20)
        for thread in touching._threads:
            thread.join(60)
        assert touched[5:] == [(24, 16)]  # what came behind it was reached already
        assert touching._buffers == []


@pytest.mark.parametrize("why", ["an old kernel", "no pages"])
def test_where_touching_ahead_cant_be_it_does_nothing(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No error: the readers touch the pages, and say so if there are none."""
    calls = []

    def none(buffer: buffers.Buffer, begin: int, end: int) -> None:
        calls.append(begin)
        raise MemoryError("can't populate")

    monkeypatch.setattr(ahead, "populate", none)
    monkeypatch.setattr(ahead, "populates", lambda: why == "no pages")
    with allocate(64 << 20) as buffer, TouchAhead([buffer]) as touching:
        for thread in touching._threads:
            thread.join(60)
        assert page_kind(buffer).resident_kb < buffer.nbytes // 1024
    assert calls == ([0] if why == "no pages" else [])
