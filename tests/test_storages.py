"""Storages: which folder, which label."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.ground.storages import default_place, name_storages
from bench.settings import SettingsError, StorageChoice

SHAPES = ["llama-3.1-8b"]


def chosen(*pairs: tuple[str | None, Path | str]) -> tuple[StorageChoice, ...]:
    return tuple(StorageChoice(label=label, path=str(path)) for label, path in pairs)


def test_without_a_choice_the_default_is_named_by_its_file_system(tmp_path: Path) -> None:
    (storage,) = name_storages((), tmp_path)
    assert storage.path == tmp_path.resolve()
    assert storage.label == (storage.record.file_system or "unknown")


def test_a_given_label_stays(tmp_path: Path) -> None:
    assert [s.label for s in name_storages(chosen(("fast", tmp_path)), tmp_path)] == ["fast"]


def test_folders_of_one_file_system_are_numbered(tmp_path: Path) -> None:
    labels = [s.label for s in name_storages(chosen(*[(None, tmp_path)] * 3), tmp_path)]
    assert labels == [labels[0], f"{labels[0]}-2", f"{labels[0]}-3"]


@pytest.mark.parametrize("given_first", [True, False])
def test_a_found_label_never_takes_a_given_one(tmp_path: Path, given_first: bool) -> None:
    (plain,) = name_storages((), tmp_path)
    pair = [(plain.label, tmp_path), (None, tmp_path)]
    labels = [s.label for s in name_storages(chosen(*pair[:: 1 if given_first else -1]), tmp_path)]
    assert sorted(labels) == [plain.label, f"{plain.label}-2"]
    assert labels[0 if given_first else 1] == plain.label


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (storage,) = name_storages(chosen((None, tmp_path / "link")), tmp_path)
    assert storage.path == (tmp_path / "real").resolve()


@pytest.mark.parametrize(("name", "found"), [("file", "a file"), ("nothing", "nothing")])
def test_what_is_no_folder_is_refused(tmp_path: Path, name: str, found: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(SettingsError, match=f"expected a folder, found {found} there"):
        name_storages(chosen((None, tmp_path / name)), tmp_path)


# Where a model lies, if no storage is named.


def test_a_built_in_shape_is_made_in_this_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_place("llama-3.1-8b", SHAPES) == tmp_path
    assert default_place("no-such-shape", SHAPES) == tmp_path


def test_a_model_is_measured_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x" * 100)
    assert default_place(str(tmp_path), SHAPES) == tmp_path.resolve()
    assert default_place(str(tmp_path / "model.safetensors"), SHAPES) == tmp_path.resolve()


def test_c24_a_folder_of_links_is_measured_where_the_weights_lie(tmp_path: Path) -> None:
    """The cache of the Hub, or a folder of links to another disk: what is said of the storage is
    said of the disk that is read."""
    blobs, snapshot = tmp_path / "elsewhere", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    (blobs / "abc").write_bytes(b"x" * 1000)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors").symlink_to("../elsewhere/abc")
    (snapshot / "gone.safetensors").symlink_to("../elsewhere/nothing")
    assert default_place(str(snapshot), SHAPES) == blobs.resolve()


def test_an_empty_folder_is_itself(tmp_path: Path) -> None:
    assert default_place(str(tmp_path), SHAPES) == tmp_path.resolve()


def test_a_model_of_the_hub_lies_in_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "not" / "yet"))
    assert default_place("org/model", SHAPES) == tmp_path
