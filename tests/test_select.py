"""Which files are weights, what is left out and why, and what is said when there are none."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from loaders.checkpoint import names
from loaders.checkpoint.manifest import (
    Checkpoint,
    CheckpointError,
    UnreadableError,
)
from loaders.checkpoint.read import examine, open_checkpoint
from tests import tiny
from tests.tiny_select import TWO, W, codes, files, save

V = {"v": ("F32", [2])}


def reason(checkpoint: Checkpoint, name: str) -> str:
    return next(one.reason for one in checkpoint.ignored if one.file == name)


def test_single_file_and_folder_give_the_same_tensors(tmp_path: Path) -> None:
    path = tiny.write_tensors(tmp_path / "model.safetensors", W)
    whole, single = open_checkpoint(tmp_path), open_checkpoint(path)
    assert whole.tensors == single.tensors
    assert whole.root == single.root == str(tmp_path)
    assert (whole.origin, single.origin) == (str(tmp_path), str(path))


def test_shards_are_in_natural_order(tmp_path: Path) -> None:
    for number in (10, 9, 2, 1):
        tiny.write_tensors(tmp_path / f"part{number}.safetensors", {f"t{number}": ("U8", [1])})
    assert files(open_checkpoint(tmp_path)) == [f"part{n}.safetensors" for n in (1, 2, 9, 10)]


def test_index_drops_consolidated_and_says_why(tmp_path: Path) -> None:
    tiny.write_sharded(tmp_path, TWO)
    tiny.write_tensors(tmp_path / "consolidated.safetensors", {**TWO[0], **TWO[1]})
    tiny.write_tensors(tmp_path / "original" / "consolidated.00.safetensors", W)
    tiny.write_tensors(tmp_path / "extra.safetensors", W)
    checkpoint = open_checkpoint(tmp_path)
    assert files(checkpoint) == [tiny.shard_name(1, 2), tiny.shard_name(2, 2)]
    assert "model.safetensors.index.json" in reason(checkpoint, "consolidated.safetensors")
    assert "copy" in reason(checkpoint, "consolidated.safetensors")
    assert "copy" in reason(checkpoint, "original/")
    assert "not named" in reason(checkpoint, "extra.safetensors")


@pytest.mark.parametrize(
    "name",
    [
        "training_args.bin",
        "optimizer.bin",
        "optimizer.pt",
        "my_optimizer.pt",
        "optimizer_1.bin",
        "optimizer-00001-of-00002.pt",
        "optimizer-00001-of-00002.bin",
        "scheduler.pt",
        "scheduler.bin",
        "scaler.pt",
        "rng_state_0.pt",
        "adapter_model.bin",
        "pytorch_lora_weights.bin",
        "openvino_model.bin",
        "ggml-model-f16.bin",
    ],
)
def test_c31_training_state_is_left_out(tmp_path: Path, name: str) -> None:
    save(tmp_path / "pytorch_model.bin", {"w": torch.zeros(2)})
    (tmp_path / name).write_bytes(b"never opened")
    checkpoint = open_checkpoint(tmp_path)
    assert files(checkpoint) == ["pytorch_model.bin"]
    assert checkpoint.format == "pt"
    assert reason(checkpoint, name)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "optimizer.safetensors"])
def test_c31_the_same_for_safetensors(tmp_path: Path, name: str) -> None:
    tiny.write_tensors(tmp_path / "model.safetensors", W)
    tiny.write_tensors(tmp_path / name, W)
    checkpoint = open_checkpoint(tmp_path)
    assert files(checkpoint) == ["model.safetensors"]
    assert reason(checkpoint, name)


def test_c31_a_torch_file_without_weights_is_left_out(tmp_path: Path) -> None:
    save(tmp_path / "pytorch_model.bin", {"w": torch.zeros(2)})
    save(tmp_path / "sampler.bin", {"epoch": 3, "step": 100})
    checkpoint = open_checkpoint(tmp_path)
    assert files(checkpoint) == ["pytorch_model.bin"]
    assert reason(checkpoint, "sampler.bin")


def test_safetensors_come_before_bin_before_pt(tmp_path: Path) -> None:
    save(tmp_path / "model.pt", {"w": torch.zeros(2)})
    assert files(open_checkpoint(tmp_path)) == ["model.pt"]
    save(tmp_path / "pytorch_model.bin", {"w": torch.zeros(2)})
    assert files(open_checkpoint(tmp_path)) == ["pytorch_model.bin"]
    tiny.write_tensors(tmp_path / "model.safetensors", W)
    checkpoint = open_checkpoint(tmp_path)
    assert files(checkpoint) == ["model.safetensors"]
    assert "*.safetensors" in reason(checkpoint, "pytorch_model.bin")
    assert files(open_checkpoint(tmp_path, format="pt")) == ["pytorch_model.bin"]


def test_an_npcache_is_read_if_there_is_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "np").mkdir()
    with (tmp_path / "np" / "w").open("wb") as file:
        np.save(file, np.zeros(3, "<f4"))
    (tmp_path / "np" / "weight_names.json").write_text('["w"]')
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.format, checkpoint.tensor_bytes) == ("npcache", 12)
    save(tmp_path / "model.pt", {"w": torch.zeros(2)})
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.format == "pt"
    assert "npcache" in reason(checkpoint, "np/")
    with pytest.raises(UnreadableError, match="npcache is a folder"):
        examine(tmp_path / "model.pt", format="npcache")


def test_hidden_and_upper_case_names_are_no_matches(tmp_path: Path) -> None:
    tiny.write_tensors(tmp_path / "model.safetensors", W)
    (tmp_path / "._model.safetensors").write_bytes(b"\0\5\x16\7 resource fork")
    tiny.write_tensors(tmp_path / "OTHER.SAFETENSORS", V)
    checkpoint = open_checkpoint(tmp_path)
    assert files(checkpoint) == ["model.safetensors"]
    assert "hidden" in reason(checkpoint, "._model.safetensors")
    assert "lower case" in reason(checkpoint, "OTHER.SAFETENSORS")


def test_mistral_folder_with_its_own_index(tmp_path: Path) -> None:
    weight_map = {}
    for number, tensors in enumerate(TWO, 1):
        name = tiny.shard_name(number, 2, "consolidated-")
        tiny.write_tensors(tmp_path / name, tensors)
        weight_map.update(dict.fromkeys(tensors, name))
    tiny.write_index(tmp_path, weight_map, name="consolidated.safetensors.index.json")
    assert len(files(open_checkpoint(tmp_path))) == 2


def test_mistral_folder_with_one_file(tmp_path: Path) -> None:
    tiny.write_tensors(tmp_path / "consolidated.safetensors", W)
    assert files(open_checkpoint(tmp_path)) == ["consolidated.safetensors"]


def _write_two_copies(folder: Path, kind: str) -> None:
    both = {**TWO[0], **TWO[1]}
    if kind == "single and shards":
        tiny.write_sharded(folder, TWO, index=False)
        tiny.write_tensors(folder / "model.safetensors", both)
    elif kind == "consolidated and shards":
        tiny.write_sharded(folder, TWO, index=False)
        tiny.write_tensors(folder / "consolidated.safetensors", both)
    elif kind == "consolidated and single":
        tiny.write_tensors(folder / "consolidated.safetensors", {"x.a": ("F32", [2])})
        tiny.write_tensors(folder / "model.safetensors", both)
    elif kind == "two shard sets":
        tiny.write_sharded(folder, TWO, index=False)
        four = [{n: ("F32", [1])} for n in ("a", "b", "c", "d")]
        tiny.write_sharded(folder, four, index=False)
    elif kind == "other names":
        tiny.write_tensors(folder / "model.safetensors", both)
        tiny.write_tensors(folder / "model.fp16.safetensors", both)
    elif kind == "hard link":
        tiny.write_tensors(folder / "model.safetensors", both)
        os.link(folder / "model.safetensors", folder / "weights.safetensors")


@pytest.mark.parametrize(
    "kind",
    [
        "single and shards",
        "consolidated and shards",
        "consolidated and single",
        "two shard sets",
        "other names",
        "hard link",
    ],
)
def test_two_copies_without_an_index_are_a_fault(tmp_path: Path, kind: str) -> None:
    _write_two_copies(tmp_path, kind)
    checkpoint = examine(tmp_path)
    assert [problem.code for problem in checkpoint.errors].count("two-copies") == 1
    with pytest.raises(CheckpointError, match="two copies"):
        open_checkpoint(tmp_path)


def test_a_second_file_with_other_tensors_is_no_copy(tmp_path: Path) -> None:
    tiny.write_tensors(tmp_path / "model.safetensors", W)
    tiny.write_tensors(tmp_path / "visual.safetensors", V)
    assert len(open_checkpoint(tmp_path).files) == 2


def test_files_of_several_ranks_are_named_as_such(tmp_path: Path) -> None:
    for rank in (0, 1):
        tiny.write_tensors(tmp_path / f"model-rank-{rank}-part-0.safetensors", W)
    assert "rank-sharded" in codes(examine(tmp_path))


@pytest.mark.parametrize(("present", "total"), [((1, 3), 3), ((2,), 2), ((1,), 99_999_999)])
def test_missing_shards_without_an_index(
    tmp_path: Path, present: tuple[int, ...], total: int
) -> None:
    for number in present:
        tiny.write_tensors(tmp_path / tiny.shard_name(number, total), {f"t{number}": ("U8", [1])})
    checkpoint = examine(tmp_path)
    (problem,) = [p for p in checkpoint.errors if p.code == "shards-missing"]
    lacking = next(n for n in range(1, total + 1) if n not in present)
    assert f"missing: {lacking}" in problem.message


def test_missing_shards_of_torch_files(tmp_path: Path) -> None:
    save(tmp_path / tiny.shard_name(1, 2, "pytorch_model-", ".bin"), {"w": torch.zeros(1)})
    assert "shards-missing" in codes(examine(tmp_path))


def test_shards_counted_from_zero(tmp_path: Path) -> None:
    for number in (0, 1):
        tiny.write_tensors(tmp_path / tiny.shard_name(number, 2), {f"t{number}": ("U8", [1])})
    assert not examine(tmp_path).problems
    assert names.missing_numbers(3, {0, 2}) == (1, [1])


def test_a_shard_beyond_its_total(tmp_path: Path) -> None:
    for number in (1, 2, 5):
        tiny.write_tensors(tmp_path / tiny.shard_name(number, 2), {f"t{number}": ("U8", [1])})
    assert "shard-number" in codes(examine(tmp_path))


def test_one_shard_given_as_a_file_is_a_warning(tmp_path: Path) -> None:
    tiny.write_sharded(tmp_path, TWO)
    checkpoint = open_checkpoint(tmp_path / tiny.shard_name(2, 2))
    assert [tensor.name for tensor in checkpoint.tensors] == ["b"]
    assert codes(checkpoint, "warning") == {"single-shard"}


def test_the_index_file_stands_for_its_folder(tmp_path: Path) -> None:
    tiny.write_sharded(tmp_path, TWO)
    assert len(open_checkpoint(tmp_path / "model.safetensors.index.json").files) == 2
