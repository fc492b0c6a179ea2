"""Which files are weights, what is left out and why, and what is said when there are none."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from loaders.checkpoint import names
from loaders.checkpoint.manifest import (
    Checkpoint,
    CheckpointError,
    NoWeightsError,
    UnreadableError,
)
from loaders.checkpoint.read import examine, open_checkpoint
from tests import tiny

W = {"w": ("F32", [2])}
V = {"v": ("F32", [2])}
TWO = [{"a": ("F32", [2])}, {"b": ("F32", [2])}]


def codes(checkpoint: Checkpoint, severity: str = "error") -> set[str]:
    return {problem.code for problem in checkpoint.problems if problem.severity == severity}


def files(checkpoint: Checkpoint) -> list[str]:
    return [file.name for file in checkpoint.files]


def reason(checkpoint: Checkpoint, name: str) -> str:
    return next(one.reason for one in checkpoint.ignored if one.file == name)


def save(path: Path, saved: object) -> None:
    torch.save(saved, str(path))


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


# -- nothing there (C33) -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("present", "asked", "said"),
    [
        ([], "auto", "empty"),
        (["README.md"], "auto", "README.md"),
        (["pytorch_model.bin"], "safetensors", "--format pt"),
        (["model.pt"], "safetensors", "--format pt"),
        (["model.safetensors"], "pt", "--format safetensors"),
        (["model.Q4_K_M.gguf"], "auto", "llama.cpp"),
        (["model.safetensors.incomplete"], "auto", "unfinished"),
        (["model.safetensors.part"], "auto", "unfinished"),
        (["adapter_model.safetensors"], "auto", "adapter"),
        (["training_args.bin", "optimizer.pt"], "auto", "training state"),
        (["consolidated.00.pth"], "auto", "its own path"),
        (["tf_model.h5"], "auto", "TensorFlow"),
        (["flax_model.msgpack"], "auto", "Flax"),
        (["model.safetensors"], "npcache", "--format safetensors"),
        (["sub/model.safetensors"], "auto", "sub-folder sub/"),
        (["np/weight_names.json"], "safetensors", "npcache"),
    ],
)
def test_c33_says_what_is_there_and_what_would_read_it(
    tmp_path: Path, present: list[str], asked: str, said: str
) -> None:
    for name in present:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(NoWeightsError) as caught:
        examine(tmp_path, format=asked)  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_c33_an_index_without_any_of_its_shards(tmp_path: Path) -> None:
    tiny.write_index(tmp_path, {"w": "model-00001-of-00001.safetensors"})
    with pytest.raises(NoWeightsError, match="model-00001-of-00001"):
        examine(tmp_path)


@pytest.mark.parametrize("name", ["README.md", "model.gguf", "config.json", "data"])
def test_c33_a_file_that_is_no_weight_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"anything but weights")
    with pytest.raises(NoWeightsError, match="not a weight file"):
        examine(tmp_path / name)


def test_a_weight_file_without_a_telling_name(tmp_path: Path) -> None:
    plain = tmp_path / "blob"
    tiny.write_tensors(plain, W)
    assert open_checkpoint(plain).format == "safetensors"
    save(tmp_path / "weights", {"w": torch.zeros(2)})
    assert open_checkpoint(tmp_path / "weights").format == "pt"


def test_c34_an_orphan_index_beside_torch_files(tmp_path: Path) -> None:
    for number in (1, 2):
        name = tiny.shard_name(number, 2, "pytorch_model-", ".bin")
        save(tmp_path / name, {f"t{number}": torch.zeros(2)})
    tiny.write_index(tmp_path, {"t1": tiny.shard_name(1, 2), "t2": tiny.shard_name(2, 2)})
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.format == "pt"
    assert codes(checkpoint, "warning") == {"index-orphan"}
    with pytest.raises(NoWeightsError, match="--format pt") as caught:
        open_checkpoint(tmp_path, format="safetensors")
    assert "model.safetensors.index.json" in str(caught.value)


# -- unfinished, not files, not readable ---------------------------------------------------------


def test_an_unfinished_shard_is_a_fault_a_leftover_a_warning(tmp_path: Path) -> None:
    tiny.write_tensors(tmp_path / "model.safetensors", W)
    (tmp_path / "model.safetensors.incomplete").write_bytes(b"")
    (tmp_path / "tokenizer.json.incomplete").write_bytes(b"")
    checkpoint = examine(tmp_path)
    assert codes(checkpoint) == set()
    assert codes(checkpoint, "warning") == {"incomplete-download"}
    (tmp_path / "more.safetensors.incomplete").write_bytes(b"")
    assert codes(examine(tmp_path)) == {"incomplete-download"}


def test_aria2_marks_the_file_beside_it_as_unfinished(tmp_path: Path) -> None:
    tiny.write_tensors(tmp_path / "model.safetensors", W)
    (tmp_path / "model.safetensors.aria2").write_bytes(b"")
    assert codes(examine(tmp_path)) == {"incomplete-download"}


def test_a_folder_a_pipe_and_a_socket_named_like_weights(tmp_path: Path) -> None:
    tiny.write_tensors(tmp_path / "model.safetensors", W)
    (tmp_path / "a.safetensors").mkdir()
    os.mkfifo(tmp_path / "b.safetensors")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "c.safetensors"))
        checkpoint = examine(tmp_path)  # must not wait for somebody to write into the pipe
    assert codes(checkpoint) == {"not-a-file"}
    assert len(checkpoint.errors) == 3
    assert files(checkpoint) == ["model.safetensors"]


def test_a_pipe_given_as_the_path(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.safetensors")
    with pytest.raises(UnreadableError, match="named pipe"):
        examine(tmp_path / "x.safetensors")
    with pytest.raises(UnreadableError, match="character device"):
        examine("/dev/null")


def _deny(monkeypatch: pytest.MonkeyPatch, denied: Path) -> None:
    """As chmod 000 would, also for root."""
    real = os.open

    def refuse(path: object, *args: object, **options: object) -> int:
        if str(path) == str(denied):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refuse)


def test_a_shard_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.write_sharded(tmp_path, TWO)
    _deny(monkeypatch, tmp_path / tiny.shard_name(2, 2))
    (problem,) = examine(tmp_path).errors
    assert (problem.code, problem.file) == ("unreadable-file", tiny.shard_name(2, 2))


def test_a_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny.write_tensors(tmp_path / "x.safetensors", W)
    _deny(monkeypatch, path)
    with pytest.raises(UnreadableError, match="Permission denied"):
        examine(path)


@pytest.mark.parametrize("path", ["", "a\0b", "/no/such/place", "x" * 5000])
def test_paths_that_lead_nowhere(path: str) -> None:
    with pytest.raises(UnreadableError):
        examine(path)


def test_an_unknown_format_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="gguf"):
        examine(tmp_path, format="gguf")  # type: ignore[arg-type]


def test_an_empty_checkpoint_has_no_tensors(tmp_path: Path) -> None:
    tiny.write_raw(tmp_path / "model.safetensors", {})
    assert codes(examine(tmp_path)) == {"no-tensors"}


def test_a_sparse_file_is_a_warning(tmp_path: Path) -> None:
    header, size = tiny.layout({"w": ("U8", [8 << 20])})
    path = tiny.write_raw(tmp_path / "model.safetensors", header)
    os.truncate(path, path.stat().st_size + size)
    assert codes(open_checkpoint(tmp_path), "warning") == {"sparse-file"}


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe", b""])
def test_a_broken_config_is_a_warning(tmp_path: Path, content: bytes) -> None:
    tiny.write_tensors(tmp_path / "model.safetensors", W)
    (tmp_path / "config.json").write_bytes(content)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config is None
    assert codes(checkpoint, "warning") == {"config-invalid"}


def test_many_faults_of_a_kind_are_counted(tmp_path: Path) -> None:
    header = {
        f"t{n}": {"dtype": "F3_X", "shape": [1], "data_offsets": [n, n + 1]} for n in range(500)
    }
    tiny.write_raw(tmp_path / "model.safetensors", header, bytes(500))
    checkpoint = examine(tmp_path)
    assert len(checkpoint.errors) == 21
    assert "480 more" in checkpoint.errors[-1].message


def test_c82_many_shards_under_a_low_limit_of_open_files(tmp_path: Path) -> None:
    shards = [{f"t{n}": ("U8", [1])} for n in range(64)]
    tiny.write_sharded(tmp_path, shards)
    (tmp_path / tiny.shard_name(7, 64)).write_bytes(b"<html>")  # errors close their file, too
    code = f"""
        import os, resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
        from loaders.checkpoint.read import examine
        before = os.listdir("/proc/self/fd")
        found = examine({str(tmp_path)!r})
        assert len(found.files) == 64 and len(found.tensors) == 63, found
        assert {{p.code for p in found.errors}} == {{"not-weights"}}, found.errors
        assert os.listdir("/proc/self/fd") == before
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
        check=False,
    )
    assert done.returncode == 0, done.stderr
