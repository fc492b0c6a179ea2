"""The loaders that can run here, and what none may leave behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_loaders import (
    Raw,
    checkpoint_of,
    noise,
    write_shard,
)

from loaders.checkpoint.manifest import Checkpoint
from loaders.contract import Loader
from loaders.registry import entries, unavailable

ROOT = Path(__file__).parent.parent
READY = {name: entry.cls for name, entry in entries().items() if unavailable(entry) is None}
# Formats that more than one loader reads are compared here; the others have files of their own.
READERS = [cls for cls in READY.values() if cls is not None and "safetensors" in cls.formats]


def names(classes: list[type[Loader]]) -> list[object]:
    return [pytest.param(cls, id=cls.name) for cls in classes]


def open_files() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


@pytest.fixture
def leaves_nothing() -> Iterator[None]:
    """No thread and no open file may outlive the load."""
    before = open_files()
    alive = threading.active_count()
    yield
    assert threading.active_count() == alive
    assert open_files() == before


def one_big_tensor(folder: Path) -> Checkpoint:
    tensor = {"w": Raw("U8", [1 << 20], noise(1 << 20, 1))}
    return checkpoint_of(
        folder, {"big.safetensors": write_shard(folder / "big.safetensors", tensor)}
    )
