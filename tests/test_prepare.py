"""What has to lie on a storage before it is measured: whole or absent, and made once."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from bench.ground import prepare as module
from bench.ground.prepare import (
    PrepareError,
    check_space,
    copy_model,
    hash_of,
    make_shape,
    prepare,
    shape_folder,
)
from bench.synth.scale import scale
from bench.synth.shapes import Shape
from loaders.checkpoint.manifest import Checkpoint, CheckpointError
from loaders.checkpoint.read import open_checkpoint
from tests.tiny import write_sharded
from tests.tiny_bench import MIB


def quiet(done: int, total: int) -> None:
    assert 0 <= done <= total


@pytest.fixture
def model(tmp_path: Path) -> Checkpoint:
    folder = tmp_path / "model"
    write_sharded(folder, [{"a": ("F32", [10])}, {"b": ("BF16", [3, 3]), "c": ("U8", [5])}])
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").symlink_to("gone")
    return open_checkpoint(str(folder))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "storage" / ".coldload"


@pytest.fixture(autouse=True)
def storage(tmp_path: Path) -> None:
    (tmp_path / "storage").mkdir()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_copy_has_the_same_bytes_and_is_made_once(model: Checkpoint, data: Path) -> None:
    shown: list[tuple[int, int]] = []
    copied = copy_model(model, data, lambda done, total: shown.append((done, total)))
    for file in model.files:
        assert (copied / file.name).read_bytes() == Path(file.path).read_bytes()
    assert (copied / "config.json").exists()
    assert (copied / "model.safetensors.index.json").exists()
    assert not (copied / "tokenizer.json").exists()
    assert shown[-1] == (model.file_bytes, model.file_bytes)
    assert open_checkpoint(str(copied)).tensor_bytes == model.tensor_bytes
    assert names(data) == [copied.name]

    shown.clear()
    assert copy_model(model, data, lambda done, total: shown.append((done, total))) == copied
    assert shown == []


def test_other_files_of_the_same_name_are_copied_anew(model: Checkpoint, data: Path) -> None:
    first = copy_model(model, data, quiet)
    os.utime(model.files[0].path, ns=(1, 1))
    second = copy_model(model, data, quiet)
    assert first != second
    assert hash_of(model) == hash_of(open_checkpoint(model.root))


def test_an_interrupted_copy_leaves_nothing(
    model: Checkpoint, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_model(model, data, interrupted)
    assert names(data) == []

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(PrepareError, match=r"\.coldload: can't copy .*model.*No space left"):
        copy_model(model, data, quiet)
    assert names(data) == []


def test_a_file_that_went_away_meanwhile(model: Checkpoint, data: Path) -> None:
    stale = Path(model.files[1].path)
    stale.unlink()
    with pytest.raises((PrepareError, FileNotFoundError), match=stale.name):
        copy_model(model, data, quiet)


def test_too_little_space_says_what_is_needed_and_what_there_is(tmp_path: Path) -> None:
    check_space(tmp_path, 1000)
    free = os.statvfs(tmp_path)
    too_much = free.f_bavail * free.f_frsize
    with pytest.raises(PrepareError) as caught:
        check_space(tmp_path, too_much)  # one in a hundred more is asked for
    text = str(caught.value)
    assert text.startswith(f"{tmp_path}: ")
    assert "of test data needed" in text
    assert "take a smaller --size" in text


def test_a_made_up_checkpoint_is_made_once(tmp_path: Path) -> None:
    folder = shape_folder(tmp_path, "llama-3.1-8b", 2 * MIB, None)
    assert folder.name.startswith("llama-3.1-8b-2MiB-own-s0-")
    made = make_shape(folder, "llama-3.1-8b", 2 * MIB, "safetensors", quiet)
    assert made == folder / "safetensors"
    before = made.stat().st_mtime_ns
    assert make_shape(folder, "llama-3.1-8b", 2 * MIB, "safetensors", quiet) == made
    assert made.stat().st_mtime_ns == before


def test_a_made_up_checkpoint_of_other_dims_lies_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an older version scaled otherwise is never taken for this one's."""
    ask = (tmp_path, "llama-3.1-8b", 2 * MIB, None)
    before = shape_folder(*ask)
    assert before == shape_folder(*ask)

    def otherwise(shape: Shape, size: int) -> Shape:
        dims = scale(shape, size).dims
        return replace(shape, dims={**dims, "heads": dims["heads"] // 2})

    monkeypatch.setattr("bench.ground.prepare.scale", otherwise)
    assert shape_folder(*ask) != before


def test_the_children_find_what_was_prepared(model: Checkpoint, tmp_path: Path) -> None:
    ready = prepare(Path(model.root), tmp_path, "x")
    assert pickle.loads(ready.manifest_path.read_bytes()) == ready.checkpoint
    assert pickle.loads(ready.reference_path.read_bytes()) == ready.reference
    assert ready.sizes == [path.stat().st_size for path in ready.paths]
    assert set(ready.reference.digests) == {"a", "b", "c"}


def test_a_faulty_checkpoint_is_not_prepared(model: Checkpoint, tmp_path: Path) -> None:
    os.truncate(model.files[0].path, 20)
    with pytest.raises(CheckpointError):
        prepare(Path(model.root), tmp_path, "x")
    assert not (tmp_path / "x.manifest").exists()
