"""What the kernel counted: read in the process that it counts."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from bench.measuring import counters
from bench.measuring.counters import (
    Counters,
    Memory,
    Meter,
    counters_of,
    memory,
    parse_status,
    reset_peak,
)

MIB = 1 << 20

STATUS = """Name:\tpython
VmPeak:\t  999999 kB
VmSize:\t  888888 kB
VmHWM:\t    2048 kB
VmRSS:\t    1024 kB
RssAnon:\t     512 kB
RssFile:\t     300 kB
RssShmem:\t     212 kB
Threads:\t1
"""


def test_status_gives_kilobytes() -> None:
    assert parse_status(STATUS) == Memory(
        resident=1024 * 1024, peak=2048 * 1024, anonymous=512 * 1024, file=512 * 1024
    )


def test_what_a_kernel_does_not_tell_is_null_not_nought() -> None:
    """gVisor shows VmRSS and no more; kernels before 4.5 had no parts."""
    assert parse_status("Name:\tpython\nVmRSS:\t1024 kB\n") == Memory(
        resident=1024 * 1024, peak=None, anonymous=None, file=None
    )
    assert parse_status("") == Memory(resident=None, peak=None, anonymous=None, file=None)
    assert parse_status("RssFile:\t4 kB\n").file == 4096


def total(**changes: int | None) -> Counters:
    values = {"minor_faults": 10, "major_faults": 2, "device_read_bytes": 100, **changes}
    return Counters(cpu_seconds=1.5, system_seconds=0.5, **values)  # type: ignore[arg-type]


def test_differences() -> None:
    spent = total(minor_faults=15, device_read_bytes=4196).since(total())
    assert spent == Counters(
        cpu_seconds=0, system_seconds=0, minor_faults=5, major_faults=0, device_read_bytes=4096
    )


def test_bytes_that_are_not_counted_stay_null() -> None:
    uncounted = total(device_read_bytes=None)
    for after, before in [(uncounted, total()), (total(), uncounted), (uncounted, uncounted)]:
        assert after.since(before).device_read_bytes is None


def test_touched_memory_is_counted_as_faults_and_as_anonymous() -> None:
    before, meter = memory(), Meter()
    counted = counters_of(meter.look())
    with mmap.mmap(-1, 8 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        block.madvise(mmap.MADV_NOHUGEPAGE)
        for page in range(0, len(block), mmap.PAGESIZE):
            block[page] = 1
        spent, now = counters_of(meter.look()).since(counted), memory()
    meter.close()
    assert spent.minor_faults >= 8 * MIB // mmap.PAGESIZE
    assert spent.cpu_seconds >= spent.system_seconds - 1e-9 >= -1e-9  # differences of sums
    if now.anonymous is not None and before.anonymous is not None:
        assert now.anonymous - before.anonymous > 7 * MIB


def test_pages_of_a_file_are_counted_apart(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(os.urandom(8 * MIB))
    before = memory()
    with (tmp_path / "file").open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    total = sum(mapped[page] for page in range(0, len(mapped), mmap.PAGESIZE))
    now = memory()
    mapped.close()
    assert total > 0
    if now.file is None or before.file is None:
        pytest.skip("this kernel doesn't tell pages of files apart")
    assert now.file - before.file > 7 * MIB


def test_the_peak_is_reset() -> None:
    if not reset_peak():
        pytest.skip("this kernel doesn't let us")
    with mmap.mmap(-1, 64 * MIB) as block:
        block.write(b"x" * len(block))
    high = memory().peak
    assert reset_peak()
    low = memory().peak
    assert high is not None
    assert low is not None
    assert high - low > 32 * MIB


def test_a_peak_that_cannot_be_reset_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sealed:
        def __init__(self, path: str) -> None:
            assert path == "/proc/self/clear_refs"

        def write_text(self, text: str) -> None:
            raise PermissionError

    monkeypatch.setattr(counters, "Path", Sealed)
    assert reset_peak() is False


def test_without_the_file_bytes_are_null(monkeypatch: pytest.MonkeyPatch) -> None:
    def sealed(path: str, flags: int) -> int:
        raise PermissionError(path)

    monkeypatch.setattr(counters.os, "open", sealed)
    meter = Meter()
    assert counters_of(meter.look()).device_read_bytes is None
    meter.close()
