"""Checkpoints in stores that tests make up, and a store that counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem
from tiny import layout, raw_file


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy between a test and its server, whatever the environment says."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def many(count: int = 24, nbytes: int = 3 << 20) -> dict[str, bytes]:
    """One file of `count` tensors, large enough for several requests of a MiB."""
    size = nbytes // count
    header, total = layout({f"t{number:03}": ("U8", [size]) for number in range(count)})
    data = bytes(range(251)) * (total // 251 + 1)
    return {"m/model.safetensors": raw_file(header, data[:total])}


class Counting(MemoryFileSystem):
    """An in-memory store that writes down what is asked of it."""

    protocol = "counting"
    store: dict[str, Any] = {}  # noqa: RUF012 - as the class it stands on
    pseudo_dirs = [""]  # noqa: RUF012
    asked: list[tuple[str, int, int]] = []  # noqa: RUF012
    lock = threading.Lock()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("counting://").strip("/")

    def cat_file(self, path: str, start: Any = None, end: Any = None, **kwargs: Any) -> bytes:
        raw: bytes = super().cat_file(path, start=start, end=end)
        with self.lock:
            self.asked.append((path, start or 0, len(raw)))
        return raw

    def _open(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("an opened file reads ahead")


@pytest.fixture
def counting() -> Iterator[type[Counting]]:
    fsspec.register_implementation("counting", Counting, clobber=True)
    Counting.store.clear()
    Counting.asked.clear()
    yield Counting
    Counting.store.clear()


def put(files: dict[str, bytes]) -> None:
    fs = Counting(skip_instance_cache=True)
    for name, content in files.items():
        Counting.store[f"/{name}"] = MemoryFile(fs, f"/{name}", content)
