"""tensorizer: conversion, manifest, loading."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch
from tiny_loaders import (
    Raw,
    Stamps,
    file_bytes,
    noise,
    tensor_bytes,
    tricky,
)

from bench.ground.convert import ConvertError, convert_to_tensorizer
from loaders.checkpoint.manifest import Checkpoint, CheckpointError, NoWeightsError
from loaders.checkpoint.read import examine, open_checkpoint
from loaders.io.errors import TruncatedError
from loaders.registry import entries, get, unavailable
from tests.tiny_peers import entry, needs, one_file

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
    monkeypatch.setattr("bench.ground.convert.registry.unavailable", lambda _: "needs tensorizer")
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
