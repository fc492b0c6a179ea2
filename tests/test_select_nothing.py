"""Selection where there is nothing, or nothing whole: empty folders, unfinished files."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from loaders.checkpoint.manifest import (
    NoWeightsError,
    UnreadableError,
)
from loaders.checkpoint.read import examine, open_checkpoint
from tests import tiny
from tests.tiny_select import TWO, W, codes, files, save

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
