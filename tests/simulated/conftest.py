"""For the checks that run on the simulated device, each file in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from simulated_npu import streams
from simulated_npu.settings import settings

from loaders.device.discover import open_device
from loaders.device.interface import Device


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """As if it had just been started: nothing queued, nothing lost, nothing that fails."""
    settings.reset()
    yield
    settings.reset()
    streams.reset()


@pytest.fixture
def device() -> Device:
    """What fails, and at which try, is counted from here on."""
    opened = open_device("npu")
    settings.tries = {}
    return opened
