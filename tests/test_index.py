"""The index against the folder and the headers, both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from loaders.checkpoint.manifest import Checkpoint, CheckpointError
from loaders.checkpoint.read import examine, open_checkpoint
from tests import tiny

EMBED = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


def codes(checkpoint: Checkpoint, severity: str = "error") -> set[str]:
    return {problem.code for problem in checkpoint.problems if problem.severity == severity}


def rewrite(folder: Path, change: Any) -> None:
    path = folder / "model.safetensors.index.json"
    root = json.loads(path.read_text())
    change(root)
    path.write_text(json.dumps(root))


def write_four(folder: Path) -> dict[str, str]:
    return tiny.write_sharded(folder, [{f"t{n}": ("F32", [n])} for n in range(1, 5)])


def test_a_sound_index_has_nothing_to_say(tmp_path: Path) -> None:
    write_four(tmp_path)
    assert not open_checkpoint(tmp_path).problems


def test_c02_an_absent_shard_lists_files_and_tensors(tmp_path: Path) -> None:
    write_four(tmp_path)
    (tmp_path / tiny.shard_name(3, 4)).unlink()
    (problem,) = examine(tmp_path).errors
    assert problem.code == "index-file-absent"
    assert tiny.shard_name(3, 4) in problem.message
    assert "t3" in problem.message
    with pytest.raises(CheckpointError, match="t3"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("absent", ["other names", "other totals"])
def test_c02_a_stale_index_is_a_warning_if_every_tensor_is_there(
    tmp_path: Path, absent: str
) -> None:
    tiny.write_sharded(tmp_path, [{"a": ("U8", [1]), "b": ("U8", [1])}, {"c": ("U8", [1])}])
    total = 4 if absent == "other totals" else 2
    stem = "model-" if absent == "other totals" else "old-"
    stale = {name: tiny.shard_name(n, total, stem) for n, name in enumerate("abc", 1)}
    tiny.write_index(tmp_path, stale)
    checkpoint = open_checkpoint(tmp_path)
    assert codes(checkpoint, "warning") == {"index-stale"}
    assert len(checkpoint.files) == 2
    assert [tensor.name for tensor in checkpoint.tensors] == ["a", "b", "c"]
    assert not checkpoint.ignored


def test_c02_a_stale_index_that_names_a_tensor_found_nowhere(tmp_path: Path) -> None:
    tiny.write_sharded(tmp_path, [{"a": ("U8", [1])}, {"c": ("U8", [1])}])
    tiny.write_index(
        tmp_path, {name: tiny.shard_name(n, 4) for n, name in enumerate(["a", "b", "c", "d"], 1)}
    )
    (problem,) = [p for p in examine(tmp_path).errors if p.code == "index-file-absent"]
    assert "2 tensors" in problem.message
    assert "b, d" in problem.message


def test_c02_a_stale_index_and_one_merged_file(tmp_path: Path) -> None:
    tiny.write_tensors(tmp_path / "model.safetensors", {"a": ("U8", [1]), "b": ("U8", [1])})
    tiny.write_index(tmp_path, {"a": tiny.shard_name(1, 2), "b": tiny.shard_name(2, 2)})
    checkpoint = open_checkpoint(tmp_path)
    assert [file.name for file in checkpoint.files] == ["model.safetensors"]
    assert codes(checkpoint, "warning") == {"index-stale"}


def test_c03_a_tensor_in_the_index_but_not_in_its_shard(tmp_path: Path) -> None:
    write_four(tmp_path)
    tiny.write_tensors(tmp_path / tiny.shard_name(2, 4), {"other": ("U8", [1])})
    checkpoint = examine(tmp_path)
    assert codes(checkpoint) == {"index-tensor-absent", "index-tensor-unlisted"}
    problem = next(p for p in checkpoint.errors if p.code == "index-tensor-absent")
    assert (problem.tensor, problem.file) == ("t2", tiny.shard_name(2, 4))
    assert "t2" in problem.message
    assert tiny.shard_name(2, 4) in problem.message


def test_c03_a_tensor_in_a_shard_but_not_in_the_index(tmp_path: Path) -> None:
    write_four(tmp_path)
    rewrite(tmp_path, lambda root: root["weight_map"].pop("t2") and root["weight_map"].update(
        {"x": tiny.shard_name(2, 4)}))  # fmt: skip
    problem = next(p for p in examine(tmp_path).errors if p.code == "index-tensor-unlisted")
    assert (problem.tensor, problem.file) == ("t2", tiny.shard_name(2, 4))


def test_c03_a_tensor_in_another_shard_than_the_index_says(tmp_path: Path) -> None:
    write_four(tmp_path)
    rewrite(tmp_path, lambda root: root["weight_map"].update(t2=tiny.shard_name(4, 4)))
    rewrite(tmp_path, lambda root: root["weight_map"].update(t4=tiny.shard_name(2, 4)))
    checkpoint = examine(tmp_path)
    assert codes(checkpoint) == {"index-wrong-shard"}
    assert tiny.shard_name(2, 4) in checkpoint.errors[0].message
    assert tiny.shard_name(4, 4) in checkpoint.errors[0].message


def test_c03_a_damaged_shard_is_told_once(tmp_path: Path) -> None:
    write_four(tmp_path)
    (tmp_path / tiny.shard_name(2, 4)).write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert codes(examine(tmp_path)) == {"lfs-pointer"}


@pytest.mark.parametrize("indexed", [True, False])
def test_c05_the_same_tensor_in_two_shards(tmp_path: Path, indexed: bool) -> None:
    tiny.write_sharded(
        tmp_path, [{"w": ("F32", [2]), "a": ("U8", [1])}, {"w": ("F32", [2])}], index=indexed
    )
    (problem,) = examine(tmp_path).errors
    assert (problem.code, problem.tensor) == ("duplicate-tensor", "w")
    assert tiny.shard_name(1, 2) in problem.message
    assert tiny.shard_name(2, 2) in problem.message


def test_c05_only_one_tensor_each(tmp_path: Path) -> None:
    tiny.write_tensors(tmp_path / "a.safetensors", {"w": ("F32", [2])})
    tiny.write_tensors(tmp_path / "b.safetensors", {"w": ("F32", [2])}, seed=2)
    assert codes(examine(tmp_path)) == {"duplicate-tensor"}


def test_c05_other_shapes_and_torch_files(tmp_path: Path) -> None:
    for number, size in ((1, 2), (2, 3)):
        name = tiny.shard_name(number, 2, "pytorch_model-", ".bin")
        torch.save({"w": torch.zeros(size)}, str(tmp_path / name))
    assert codes(examine(tmp_path)) == {"duplicate-tensor"}


def write_tied(folder: Path, config: Any) -> None:
    tiny.write_sharded(folder, [{EMBED: ("BF16", [8, 4])}, {"model.norm.weight": ("BF16", [4])}])
    rewrite(folder, lambda root: root["weight_map"].update({HEAD: tiny.shard_name(2, 2)}))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    "config", [{"tie_word_embeddings": True}, {"text_config": {"tie_word_embeddings": True}}]
)
def test_c19_a_tied_head_named_by_the_index_is_not_missing(tmp_path: Path, config: Any) -> None:
    write_tied(tmp_path, config)
    checkpoint = open_checkpoint(tmp_path)
    assert not checkpoint.problems
    assert checkpoint.tensor_bytes == 8 * 4 * 2 + 4 * 2


@pytest.mark.parametrize("config", [{"tie_word_embeddings": False}, None])
def test_c19_an_untied_head_is_missing(tmp_path: Path, config: Any) -> None:
    write_tied(tmp_path, config)
    assert codes(examine(tmp_path)) == {"index-tensor-absent"}


def test_c19_a_config_that_does_not_say(tmp_path: Path) -> None:
    write_tied(tmp_path, {"model_type": "gemma"})
    checkpoint = open_checkpoint(tmp_path)
    assert codes(checkpoint, "warning") == {"tied-assumed"}


def test_c19_other_tensors_are_never_tied(tmp_path: Path) -> None:
    write_tied(tmp_path, {"tie_word_embeddings": True})
    rewrite(tmp_path, lambda root: root["weight_map"].update({"model.x": tiny.shard_name(2, 2)}))
    assert codes(examine(tmp_path)) == {"index-tensor-absent"}


@pytest.mark.parametrize("place", [None, ""])
def test_c19_a_tied_head_without_a_place(tmp_path: Path, place: Any) -> None:
    write_tied(tmp_path, {"tie_word_embeddings": True})
    rewrite(tmp_path, lambda root: root["weight_map"].update({HEAD: place}))
    assert not open_checkpoint(tmp_path).problems


@pytest.mark.parametrize("place", [None, ""])
@pytest.mark.parametrize("config", [{"tie_word_embeddings": False}, None])
def test_c19_a_missing_head_without_a_place(tmp_path: Path, place: Any, config: Any) -> None:
    write_tied(tmp_path, config)
    rewrite(tmp_path, lambda root: root["weight_map"].update({HEAD: place}))
    (problem,) = examine(tmp_path).errors
    assert problem.code == "index-tensor-absent"
    assert problem.file == "model.safetensors.index.json"
    assert "named without a file, and no file has it" in problem.message
    assert "should be in" not in problem.message


def test_c19_both_names_stored(tmp_path: Path) -> None:
    tensors = {EMBED: ("BF16", [8, 4]), HEAD: ("BF16", [8, 4])}
    tiny.write_tensors(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text('{"tie_word_embeddings": true}')
    checkpoint = open_checkpoint(tmp_path)
    assert len(checkpoint.tensors) == 2
    assert checkpoint.config == {"tie_word_embeddings": True}


def test_c19_no_index_and_no_head(tmp_path: Path) -> None:
    tiny.write_tensors(tmp_path / "model.safetensors", {EMBED: ("BF16", [8, 4])})
    (tmp_path / "config.json").write_text('{"tie_word_embeddings": true}')
    assert not open_checkpoint(tmp_path).problems


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"weight_map": []}',
        b'{"weight_map": {}}',
        b'{"weight_map": null}',
        b'\xef\xbb\xbf{"weight_map": {"t1": "model-00001-of-00004.safetensors"}}',
        b'{"weight_map": {"t1": NaN}}',
        b"\xff\xfe",
    ],
)
def test_an_index_that_is_none(tmp_path: Path, content: bytes) -> None:
    write_four(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_bytes(content)
    checkpoint = examine(tmp_path)
    assert codes(checkpoint) == {"index-invalid"}
    assert len(checkpoint.tensors) == 4  # the files are examined all the same


def test_an_index_that_is_a_pointer_or_a_page(tmp_path: Path) -> None:
    write_four(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert codes(examine(tmp_path)) == {"lfs-pointer"}
    index.write_bytes(b"<html></html>")
    assert codes(examine(tmp_path)) == {"not-weights"}


@pytest.mark.parametrize(
    "file",
    [
        "../model-00001-of-00004.safetensors",
        "sub/../../x.safetensors",
        "/etc/passwd",
        "..",
        "..\\x.safetensors",
        "C:\\x.safetensors",
        "C:/x.safetensors",
        "\\\\server\\x",
        "a\0b",
        ".",
        "sub/",
    ],
)
def test_paths_in_an_index_never_leave_the_folder(tmp_path: Path, file: str) -> None:
    folder = tmp_path / "model"
    write_four(folder)
    tiny.write_tensors(tmp_path / "x.safetensors", {"t1": ("U8", [1])})
    rewrite(folder, lambda root: root["weight_map"].update({"evil": file}))
    checkpoint = examine(folder)
    assert codes(checkpoint) == {"index-path"}
    assert all(Path(one.path).parent == folder for one in checkpoint.files)


@pytest.mark.parametrize("value", [3, True, ["x"], {"file": "x"}])
def test_a_place_that_is_no_text(tmp_path: Path, value: Any) -> None:
    write_four(tmp_path)
    rewrite(tmp_path, lambda root: root["weight_map"].update({"t9": value}))
    assert "index-invalid" in codes(examine(tmp_path))


def test_a_shard_in_a_sub_folder_is_not_read(tmp_path: Path) -> None:
    write_four(tmp_path)
    tiny.write_tensors(tmp_path / "sub" / "x.safetensors", {"t9": ("U8", [1])})
    rewrite(tmp_path, lambda root: root["weight_map"].update(t9="sub/x.safetensors"))
    (problem,) = examine(tmp_path).errors
    assert problem.code == "index-file-absent"
    assert "sub-folders" in problem.message


def test_a_tensor_named_twice_by_the_index(tmp_path: Path) -> None:
    write_four(tmp_path)
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(path.read_text().replace('"t1":', f'"t1": "{tiny.shard_name(3, 4)}", "t1":'))
    assert codes(examine(tmp_path)) == {"index-duplicate"}


@pytest.mark.parametrize(
    ("total", "warns"),
    [(40, False), (40.0, False), (41, True), (-1, True), ("40", True), (None, False), (1.5, True)],
)
def test_total_size(tmp_path: Path, total: Any, warns: bool) -> None:
    write_four(tmp_path)  # 1 + 2 + 3 + 4 floats

    def change(root: Any) -> None:
        root["metadata"] = {} if total is None else {"total_size": total}

    rewrite(tmp_path, change)
    checkpoint = open_checkpoint(tmp_path)
    assert codes(checkpoint, "warning") == ({"index-size"} if warns else set())


def test_the_index_of_torch_files(tmp_path: Path) -> None:
    weight_map = {}
    for number in (1, 2):
        name = tiny.shard_name(number, 2, "pytorch_model-", ".bin")
        torch.save({f"t{number}": torch.zeros(number)}, str(tmp_path / name))
        weight_map[f"t{number}"] = name
    tiny.write_index(tmp_path, weight_map, name="pytorch_model.bin.index.json", total_size=12)
    checkpoint = open_checkpoint(tmp_path)
    assert not checkpoint.problems
    assert [file.name for file in checkpoint.files] == sorted(weight_map.values())
    (tmp_path / weight_map["t2"]).unlink()
    assert codes(examine(tmp_path)) == {"index-file-absent"}


def test_the_index_of_a_variant_counts_only_if_it_names_everything(tmp_path: Path) -> None:
    name = "model.safetensors.index.fp16.json"
    tiny.write_tensors(tmp_path / "model.fp16-00001-of-00001.safetensors", {"w": ("F16", [2])})
    tiny.write_index(tmp_path, {"w": "model.fp16-00001-of-00001.safetensors"}, name=name)
    assert not open_checkpoint(tmp_path).problems
    tiny.write_tensors(tmp_path / "model.safetensors", {"w": ("F32", [2]), "x": ("U8", [1])})
    assert codes(examine(tmp_path)) == {"duplicate-tensor"}


def test_many_shards_of_many_tensors(tmp_path: Path) -> None:
    shards = [{f"layer.{s}.t{n}": ("U8", [1]) for n in range(1000)} for s in range(20)]
    tiny.write_sharded(tmp_path, shards)
    checkpoint = open_checkpoint(tmp_path)
    assert len(checkpoint.tensors) == 20_000
