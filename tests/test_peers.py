"""The adapters to other libraries, as far as they are installed; how they are told to be absent."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
from tiny_loaders import (
    Raw,
    Stamps,
    file_bytes,
    many_shards,
    noise,
    tensor_bytes,
    tricky,
)

from loaders.checkpoint.manifest import Checkpoint
from loaders.contract import Loader, OptionError
from loaders.instanttensor import InstantTensor
from loaders.io import library
from loaders.io.errors import LoadError
from loaders.registry import Entry, entries, get, unavailable
from loaders.runai_streamer import RunaiStreamer
from loaders.safetensors_pread import SafetensorsPread
from tests.tiny_peers import needs, one_file

ROOT = Path(__file__).parent.parent
PEERS = {
    "fastsafetensors": "fastsafetensors",
    "runai-streamer": "runai_model_streamer",
    "tensorizer": "tensorizer",
    "instanttensor": "instanttensor",
    "safetensors-pread": "safetensors",
}


# --- absent, too old, no device ---


@pytest.mark.parametrize(("name", "module"), PEERS.items())
def test_a_peer_that_isnt_installed_is_a_row_with_its_reason(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its module must be importable without the library, and says which one it lacks."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda x: None if x == module else find(x))
    entry = entries()[name]
    assert entry.cls is not None
    assert unavailable(entry) == f"needs {module}, which is not installed"


def test_the_adapters_load_without_their_libraries() -> None:
    script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
for module in {[m for m in PEERS.values() if m != "safetensors"]!r}:
    sys.modules[module] = None  # importing it is an ImportError
from loaders.registry import entries
assert not [e.reason for e in entries().values() if e.cls is None]
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


@pytest.mark.parametrize(
    ("name", "distribution", "old"),
    [
        ("fastsafetensors", "fastsafetensors", "0.4.9"),
        ("runai-streamer", "runai-model-streamer", "0.16.3"),
        ("safetensors-pread", "safetensors", "0.7.0"),
    ],
)
def test_a_library_that_is_too_old_is_named_with_its_version(
    name: str, distribution: str, old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "version", lambda _: old)
    cls = get(name)
    reason = cls.unusable()
    assert reason is not None
    assert reason.startswith(f"needs {distribution} ")
    assert reason.endswith(f"found {old}")
    for newer in ("0.20", "1.0", "1.0.0rc1", "10"):
        monkeypatch.setattr(library, "version", lambda _, newer=newer: newer)
        assert cls.unusable() is None


@pytest.mark.parametrize(
    ("found", "needed", "old"),
    [
        ("0.8.0", "0.8", False),
        ("0.8", "0.8.0", False),
        ("0.10.1", "0.9", False),
        ("0.7.99", "0.8", True),
        ("0.8.0rc1", "0.8", False),
        ("0.17.0+local", "0.17.1", True),
        ("unknown", "0.1", True),
    ],
)
def test_versions(found: str, needed: str, old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "version", lambda _: found)
    assert (library.older_than("some", needed) is not None) == old


def test_a_module_without_a_distribution_counts_as_new(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(library, "version", absent)
    assert library.older_than("some", "1.0") is None


def test_instanttensor_needs_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    assert "built without CUDA" in str(InstantTensor.unusable())
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr("loaders.instanttensor._DEVICES", ("/no/such/device",))
    assert InstantTensor.unusable() == "needs a CUDA device, and there is none"
    monkeypatch.setattr("loaders.instanttensor._DEVICES", ("/dev/null",))
    assert InstantTensor.unusable() is None


def test_an_answer_that_raises_is_a_reason() -> None:
    class Broken(Loader):
        name, summary, formats, ownership = "broken", "", frozenset(), "owned"

        @classmethod
        def unusable(cls) -> str | None:
            raise OSError("no driver")

        def load(self, checkpoint: Checkpoint, stamp: object) -> Iterator[tuple[str, torch.Tensor]]:
            yield from ()

    reason = unavailable(Entry(name="broken", cls=Broken))
    assert reason is not None
    assert "OSError: no driver" in reason


# --- what a library can't hold ---


@needs("fastsafetensors")
def test_fastsafetensors_names_a_dtype_that_it_lacks(tmp_path: Path) -> None:
    raw = {"fine": Raw("U8", [4], b"abcd"), "odd.one": Raw("C64", [1], noise(8, 1))}
    checkpoint = one_file(tmp_path, raw)
    with pytest.raises(LoadError, match=r"x\.safetensors: tensor 'odd\.one' is complex64"):
        list(get("fastsafetensors")().load(checkpoint, Stamps()))


@needs("fastsafetensors")
def test_fastsafetensors_without_memory_ends_by_signal_or_by_a_named_error(tmp_path: Path) -> None:
    """It doesn't look whether it got its buffer (0.5.0). A child of its own for each measurement is
    what keeps the run alive."""
    checkpoint = one_file(tmp_path, {"w": Raw("U8", [4], b"abcd")})
    size = 1 << 30
    header = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (size, size)
    path = Path(checkpoint.files[0].path)
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + size)
    script = f"""
import resource, sys
sys.path[:0] = {[str(ROOT), str(ROOT / "tests")]!r}
from pathlib import Path
import fastsafetensors
from tiny_loaders import Stamps
from loaders.checkpoint.read import open_checkpoint
from loaders.registry import get
checkpoint = open_checkpoint({str(tmp_path)!r})
loader = get("fastsafetensors")(2)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), used + (256 << 20)))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
try:
    list(loader.load(checkpoint, Stamps()))
except Exception as error:
    assert "x.safetensors" in str(error), repr(error)
    sys.exit(7)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode in (-11, -6, 7), done.stderr


# --- Run:ai: kept or reused buffers, its limits ---


@needs("runai-streamer")
@pytest.mark.parametrize("ring", [1, 64])
@pytest.mark.parametrize("threads", [1, 4])
def test_runai_through_a_ring(ring: int, threads: int, tmp_path: Path) -> None:
    """Each tensor is right while it is valid; a ring that the largest tensor doesn't fit is made
    larger, and the record says so."""
    checkpoint = tricky(tmp_path)
    specs = {spec.name: spec for spec in checkpoint.tensors}
    loader = RunaiStreamer(threads, ring_mib=ring)
    assert loader.ownership == "borrowed"
    assert loader.memory_bytes(checkpoint) == 0
    seen = set()
    for name, tensor in loader.load(checkpoint, Stamps()):
        assert tensor_bytes(tensor) == file_bytes(checkpoint, specs[name])
        seen.add(name)
    assert seen == set(specs)
    assert bool(loader.notes) == (ring == 1)


@needs("runai-streamer")
def test_runai_leaves_the_environment_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNAI_STREAMER_CONCURRENCY", "3")
    monkeypatch.delenv("RUNAI_STREAMER_MEMORY_LIMIT", raising=False)
    before = dict(os.environ)
    iterator = RunaiStreamer(2, ring_mib=8).load(many_shards(tmp_path), Stamps())
    next(iterator)
    assert dict(os.environ) == before  # while it is suspended, too
    iterator.close()  # type: ignore[attr-defined]
    assert dict(os.environ) == before


def test_runai_options() -> None:
    assert RunaiStreamer(2).ownership == "owned"
    with pytest.raises(OptionError, match="ring_mib must be at least 1, got -1"):
        RunaiStreamer(2, ring_mib=-1)
    for options in RunaiStreamer.variants:
        RunaiStreamer(2, **options)


@needs("safetensors-pread")
def test_pread_reads_and_doesnt_map(tmp_path: Path) -> None:
    checkpoint = one_file(tmp_path, {"w": Raw("U8", [1 << 20], noise(1 << 20, 3))})
    for _, tensor in SafetensorsPread().load(checkpoint, Stamps()):
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()
        assert tensor.nbytes == 1 << 20
