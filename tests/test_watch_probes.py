"""Addresses, device memory and the host's stall count, without a network and without a device."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.watch.devices import DeviceMemory
from bench.watch.pressure import stalled_seconds
from bench.watch.probes import UrlError, checked, first_token


@pytest.mark.parametrize("url", ["http://h:1/x", "https://h/v1/completions?a=b", "http://[::1]:8/"])
def test_addresses_that_can_be_asked(url: str) -> None:
    assert checked(url) == url


@pytest.mark.parametrize("url", ["", "h:8000", "localhost", "ftp://h/x", "http://", "http://h:x/"])
def test_what_is_no_address_says_how_one_is_written(url: str) -> None:
    with pytest.raises(UrlError, match="HOST:PORT"):
        checked(url)


def test_nobody_there_is_a_reason_and_not_an_error() -> None:
    found = first_token("http://127.0.0.1:1/v1/completions", None)
    assert found.time is None
    assert "127.0.0.1:1" in (found.reason or "")


class Nvml:
    """NVIDIA's library with two devices; `broken` fails when it's read."""

    def __init__(self, *, broken: bool = False, devices: int = 2) -> None:
        self.broken, self.devices = broken, devices

    def nvmlInit(self) -> None:  # noqa: N802
        return

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.devices

    def nvmlDeviceGetHandleByIndex(self, at: int) -> int:  # noqa: N802
        return at

    def nvmlDeviceGetMemoryInfo(self, at: int) -> Any:  # noqa: N802
        if self.broken:
            raise RuntimeError("GPU is lost")
        return SimpleNamespace(used=(at + 1) << 30)


def test_device_memory_is_of_all_devices() -> None:
    found = DeviceMemory(Nvml)
    assert (found.reason, found.read()) == (None, 3 << 30)


def test_a_device_that_is_lost_is_null_with_its_reason() -> None:
    found = DeviceMemory(lambda: Nvml(broken=True))
    assert found.read() is None
    assert "GPU is lost" in (found.reason or "")
    assert found.read() is None


def test_without_the_library_or_a_device_it_is_null_with_its_reason() -> None:
    def absent() -> Any:
        raise ImportError

    for load, words in ((absent, "isn't installed"), (lambda: Nvml(devices=0), "no device")):
        found = DeviceMemory(load)
        assert found.read() is None
        assert words in (found.reason or "")


def test_the_stall_count_in_seconds(tmp_path: Path) -> None:
    assert stalled_seconds("io", str(tmp_path)) is None
    folder = tmp_path / "proc/pressure"
    folder.mkdir(parents=True)
    (folder / "io").write_text("some avg10=1.00 avg60=0 avg300=0 total=2500000\nfull total=1\n")
    assert stalled_seconds("io", str(tmp_path)) == 2.5
