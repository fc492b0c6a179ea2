"""The adapters to other libraries, as far as they are installed; how they are told to be absent."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
from tiny_loaders import (
    Raw,
    Stamps,
    checkpoint_of,
    file_bytes,
    many_shards,
    noise,
    tensor_bytes,
    tricky,
    write_shard,
)

from bench.convert import ConvertError, convert_to_tensorizer
from loaders.checkpoint.manifest import Checkpoint, CheckpointError, NoWeightsError
from loaders.checkpoint.read import examine, open_checkpoint
from loaders.contract import Loader, OptionError
from loaders.instanttensor import InstantTensor
from loaders.io import library
from loaders.io.errors import LoadError, TruncatedError
from loaders.registry import Entry, entries, get, unavailable
from loaders.runai_streamer import RunaiStreamer
from loaders.safetensors_pread import SafetensorsPread

ROOT = Path(__file__).parent.parent
PEERS = {
    "fastsafetensors": "fastsafetensors",
    "runai-streamer": "runai_model_streamer",
    "tensorizer": "tensorizer",
    "instanttensor": "instanttensor",
    "safetensors-pread": "safetensors",
}


def needs(name: str) -> pytest.MarkDecorator:
    reason = unavailable(entries()[name])
    return pytest.mark.skipif(reason is not None, reason=f"{name}: {reason}")


def one_file(folder: Path, tensors: dict[str, Raw]) -> Checkpoint:
    return checkpoint_of(folder, {"x.safetensors": write_shard(folder / "x.safetensors", tensors)})


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


# --- tensorizer: conversion, manifest, loading ---


@pytest.fixture
def converted(tmp_path: Path) -> tuple[Checkpoint, Checkpoint]:
    """(source, the same as tensorizer's format)."""
    reason = unavailable(entries()["tensorizer"])
    if reason is not None:
        pytest.skip(f"tensorizer: {reason}")
    source = tmp_path / "source"
    source.mkdir()
    made = tricky(source, {"empty.0"})
    (source / "config.json").write_text('{"model_type": "tiny"}')
    dest = convert_to_tensorizer(open_checkpoint(source), tmp_path / "converted")
    assert dest == tmp_path / "converted"
    return made, open_checkpoint(dest)


def test_the_converted_form_holds_the_same_tensors(
    converted: tuple[Checkpoint, Checkpoint],
) -> None:
    source, made = converted
    assert made.format == "tensorizer"
    assert [file.name for file in made.files] == ["model.tensors"]
    assert made.config == {"model_type": "tiny"}
    forms = [
        {spec.name: (spec.dtype, spec.shape, file_bytes(one, spec)) for spec in one.tensors}
        for one in converted
    ]
    assert forms[0] == forms[1]
    assert [spec.offset for spec in made.tensors] == sorted(spec.offset for spec in made.tensors)
    assert source.tensor_bytes == made.tensor_bytes


def test_it_is_converted_once_and_nothing_is_left_beside(
    converted: tuple[Checkpoint, Checkpoint], tmp_path: Path
) -> None:
    source, made = converted
    before = Path(made.files[0].path).stat()
    assert convert_to_tensorizer(source, tmp_path / "converted") == tmp_path / "converted"
    after = Path(made.files[0].path).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["converted", "source"]


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_tensorizer_yields_the_files_bytes(
    threads: int, converted: tuple[Checkpoint, Checkpoint]
) -> None:
    _, made = converted
    specs = {spec.name: spec for spec in made.tensors}
    alive = set(threading.enumerate())
    fds = len(list(Path("/proc/self/fd").iterdir()))
    found = dict(get("tensorizer")(threads).load(made, Stamps()))
    assert set(found) == set(specs)
    for name, tensor in found.items():
        assert type(tensor) is torch.Tensor
        assert not tensor.requires_grad
        assert tensor_bytes(tensor) == file_bytes(made, specs[name])
    assert set(threading.enumerate()) == alive
    assert len(list(Path("/proc/self/fd").iterdir())) == fds


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_tensorizer_closed_half_way(taken: int, converted: tuple[Checkpoint, Checkpoint]) -> None:
    _, made = converted
    alive = set(threading.enumerate())
    fds = len(list(Path("/proc/self/fd").iterdir()))
    iterator = get("tensorizer")(4).load(made, Stamps())
    for _ in range(taken):
        next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    assert set(threading.enumerate()) == alive
    assert len(list(Path("/proc/self/fd").iterdir())) == fds


def test_tensorizer_says_that_a_file_was_cut_off(
    converted: tuple[Checkpoint, Checkpoint],
) -> None:
    """C39: the library itself wouldn't notice, it fills what it can."""
    _, made = converted
    file = made.files[0]
    os.truncate(file.path, file.size - 100)
    with pytest.raises(TruncatedError, match=r"model\.tensors") as caught:
        list(get("tensorizer")(2).load(made, Stamps()))
    assert (caught.value.expected, caught.value.found) == (file.size, file.size - 100)
    with pytest.raises(CheckpointError, match="cut off"):
        open_checkpoint(made.root)


@needs("tensorizer")
@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (Raw("BF16", [0, 4], b""), "empty bfloat16"),
        (Raw("F8_E4M3", [0], b""), "empty float8_e4m3fn"),
        (Raw("F4", [2, 8], noise(8, 1)), "float4_e2m1fn_x2"),
    ],
)
def test_what_tensorizer_cant_hold_is_refused_before_anything_is_written(
    raw: Raw, words: str, tmp_path: Path
) -> None:
    source = one_file(tmp_path, {"fine": Raw("U8", [1], b"a"), "odd": raw})
    with pytest.raises(ConvertError, match=f"odd is .*{words}"):
        convert_to_tensorizer(source, tmp_path / "new" / "converted")
    assert not (tmp_path / "new").exists()


def test_conversion_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.convert.registry.unavailable", lambda _: "needs tensorizer")
    source = one_file(tmp_path, {"fine": Raw("U8", [1], b"a")})
    with pytest.raises(ConvertError, match="can't be written: needs tensorizer"):
        convert_to_tensorizer(source, tmp_path / "converted")
    assert not (tmp_path / "converted").exists()


def test_safetensors_beside_a_tensors_file_win(converted: tuple[Checkpoint, Checkpoint]) -> None:
    source, made = converted
    Path(made.files[0].path).rename(Path(source.root) / "model.tensors")
    assert open_checkpoint(source.root).format == "safetensors"
    assert open_checkpoint(source.root, format="tensorizer").format == "tensorizer"
    assert open_checkpoint(Path(source.root) / "model.tensors").format == "tensorizer"


def index_file(
    path: Path,
    *,
    version: int = 2,
    flags: int = 0,
    entries: bytes = b"",
    n: int = 1,
    length: int | None = None,
    data: bytes = b"",
) -> None:
    head = b"|TZR|" + version.to_bytes(4, "little") + flags.to_bytes(32, "little") + bytes(16)
    size = len(entries) if length is None else length
    head += n.to_bytes(8, "little") + size.to_bytes(8, "little")
    path.write_bytes(head + entries + data)


def entry(
    name: bytes,
    dtype: bytes,
    shape: list[int],
    offset: int,
    nbytes: int,
    *,
    version: int | None = None,
) -> bytes:
    wide = 8 if version is not None and version >= 5 else 4
    raw = b"" if version is None else version.to_bytes(4, "little")
    raw += len(name).to_bytes(2, "little") + name + b"\2" + bytes([len(dtype)]) + dtype
    raw += bytes([len(shape)]) + b"".join(extent.to_bytes(wide, "little") for extent in shape)
    return raw + bytes(8) + offset.to_bytes(8, "little") + nbytes.to_bytes(8, "little")


@pytest.mark.parametrize("version", [1, 2, 4])
def test_a_hand_made_index(version: int, tmp_path: Path) -> None:
    raw = entry(b"a", b"<f4", [2], 200, 8) + entry(b"b", b"<V2\0torch.bfloat16", [], 208, 2)
    index_file(tmp_path / "m.tensors", version=version, entries=raw, n=2, data=bytes(300))
    checkpoint = open_checkpoint(tmp_path)
    assert [(t.name, t.dtype, t.shape, t.offset, t.nbytes) for t in checkpoint.tensors] == [
        ("a", "float32", (2,), 200, 8),
        ("b", "bfloat16", (), 208, 2),
    ]


def test_versioned_entries_with_long_shapes(tmp_path: Path) -> None:
    raw = entry(b"a", b"|u1", [3], 150, 3, version=5) + entry(b"b", b"|u1", [4], 160, 4, version=1)
    index_file(tmp_path / "m.tensors", version=5, flags=2, entries=raw, n=2, data=bytes(300))
    assert [spec.shape for spec in open_checkpoint(tmp_path).tensors] == [(3,), (4,)]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"version": 6}, "unsupported-version"),
        ({"version": 3}, "encrypted"),
        ({"version": 4, "flags": 1}, "encrypted"),
        ({"length": 10_000}, "truncated"),
        ({"n": 2}, "corrupt-header"),
        ({"n": 0, "entries": b""}, "no-tensors"),
        ({"entries": entry(b"a", b"<f4", [2], 100, 9)}, "size-mismatch"),
        ({"entries": entry(b"a", b"<x9", [2], 100, 8)}, "unsupported-dtype"),
        ({"entries": entry(b"a", b"<f4", [2], 10_000, 8)}, "truncated"),
        ({"entries": entry(b"\x1e[1]", b"<f4", [2], 100, 8)}, "nested-names"),
        ({"entries": entry(b"\xff\xfe", b"<f4", [2], 100, 8)}, "corrupt-header"),
        ({"entries": entry(b"a", b"<f4", [2], 100, 8) * 2, "n": 2}, "duplicate-tensor"),
    ],
)
def test_faults_of_a_tensors_file(change: dict[str, object], code: str, tmp_path: Path) -> None:
    given = {"entries": entry(b"a", b"<f4", [2], 100, 8), "data": bytes(100), **change}
    index_file(tmp_path / "m.tensors", **given)  # type: ignore[arg-type]
    problems = examine(tmp_path).problems
    assert [problem.code for problem in problems] == [code]
    assert "m.tensors" in problems[0].message


@pytest.mark.parametrize("content", [b"", b"|TZ", b"|TZR|\1\0", b"version https://git-lfs"])
def test_what_is_no_tensors_file(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.tensors").write_bytes(content)
    problems = examine(tmp_path / "m.tensors").problems
    assert [problem.code for problem in problems if problem.severity == "error"]


def test_a_tensors_file_is_named_where_another_format_was_asked_for(tmp_path: Path) -> None:
    raw = entry(b"a", b"<f4", [2], 200, 8)
    index_file(tmp_path / "m.tensors", entries=raw, data=bytes(300))
    with pytest.raises(NoWeightsError, match=r"m\.tensors.*--format tensorizer"):
        examine(tmp_path, format="safetensors")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoWeightsError, match="no weights of format tensorizer"):
        examine(tmp_path / "empty", format="tensorizer")
