"""`coldload check`: exit codes, the JSON document, and what it never prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bench.cli import main
from tests import tiny

KEYS = {
    "ok", "error", "path", "root", "format", "files", "tensors", "tensor_bytes", "storage_bytes",
    "file_bytes", "dtypes", "ignored", "problems", "snapshot",
}  # fmt: skip


def check(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["check", *map(str, arguments)])


def document(*arguments: object) -> tuple[int, dict[str, Any]]:
    done = check(*arguments, "--json")
    found = json.loads(done.stdout)
    assert set(found) == KEYS
    assert done.stderr == ""
    return done.exit_code, found


def test_a_sound_checkpoint(tmp_path: Path) -> None:
    tiny.write_sharded(tmp_path, [{"a": ("F32", [2])}, {"b": ("BF16", [3]), "c": ("BF16", [])}])
    tiny.write_tensors(tmp_path / "consolidated.safetensors", {"x": ("U8", [1])})
    code, found = document(tmp_path)
    assert code == 0
    assert found["ok"] is True
    assert found["error"] is None
    assert found["format"] == "safetensors"
    names = [tiny.shard_name(1, 2), tiny.shard_name(2, 2)]
    sizes = [(tmp_path / name).stat().st_size for name in names]
    assert found["files"] == [
        {"name": name, "bytes": size} for name, size in zip(names, sizes, strict=True)
    ]
    assert found["file_bytes"] == sum(sizes)
    assert (found["tensors"], found["tensor_bytes"]) == (3, 16)
    assert found["dtypes"] == {"bfloat16": 8, "float32": 8}
    assert [one["file"] for one in found["ignored"]] == ["consolidated.safetensors"]
    assert found["problems"] == []


def test_a_faulty_checkpoint_exits_1(tmp_path: Path) -> None:
    path = tiny.write_tensors(tmp_path / "model.safetensors", {"w": ("U8", [9])})
    path.write_bytes(path.read_bytes() + b"16 bytes of more")
    code, found = document(tmp_path)
    assert code == 1
    assert found["ok"] is False
    (problem,) = found["problems"]
    assert set(problem) == {"code", "file", "tensor", "message", "severity"}
    assert (problem["code"], problem["file"]) == ("trailing-bytes", "model.safetensors")
    assert problem["severity"] == "error"
    assert found["tensor_bytes"] == 9
    human = check(tmp_path)
    assert human.exit_code == 1
    assert "trailing-bytes" in human.stdout
    assert "1 fault" in human.stdout


def test_warnings_alone_exit_0(tmp_path: Path) -> None:
    tiny.write_sharded(tmp_path, [{"a": ("U8", [1])}])
    tiny.write_index(tmp_path, {"a": tiny.shard_name(1, 1)}, total_size=5)
    code, found = document(tmp_path)
    assert (code, found["ok"]) == (0, True)
    assert [problem["severity"] for problem in found["problems"]] == ["warning"]
    assert "sound, 1 warning" in check(tmp_path).stdout


@pytest.mark.parametrize("path", ["/no/such/place", "s3://bucket/model", "/dev/null"])
def test_unreadable_exits_2_and_still_prints_json(path: str) -> None:
    code, found = document(path)
    assert code == 2
    assert (found["ok"], found["problems"], found["files"]) == (False, [], [])
    assert path in found["error"]
    human = check(path)
    assert (human.exit_code, human.stdout) == (2, "")
    assert path in human.stderr


def test_c33_no_weights_exits_3(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("hello")
    code, found = document(tmp_path)
    assert code == 3
    assert found["ok"] is False
    assert "README.md" in found["error"]
    assert check(tmp_path).exit_code == 3


def test_wrong_usage_exits_2(tmp_path: Path) -> None:
    assert check().exit_code == 2
    assert check(tmp_path, "--format", "gguf").exit_code == 2
    assert check(tmp_path, "--nonsense").exit_code == 2


def test_the_format_can_be_asked_for(tmp_path: Path) -> None:
    tiny.write_tensors(tmp_path / "model.safetensors", {"w": ("U8", [9])})
    assert check(tmp_path, "--format", "safetensors").exit_code == 0
    done = check(tmp_path, "--format", "pt")
    assert done.exit_code == 3
    assert "--format safetensors" in done.stderr


def test_c25_checksum(tmp_path: Path) -> None:
    content = tiny.raw_file({"w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, b"x")
    snapshot = tiny.write_hf_cache(tmp_path, {"model.safetensors": content})
    assert check(snapshot, "--checksum").exit_code == 0
    (snapshot / "model.safetensors").resolve().write_bytes(content[:-1] + b"y")
    assert check(snapshot).exit_code == 0
    code, found = document(snapshot, "--checksum")
    assert code == 1
    assert [problem["code"] for problem in found["problems"]] == ["checksum-mismatch"]


NASTY = [
    "[red]boo[/red]",
    "[/]",
    "a\nb",
    "esc\x1b[31m",
    "\x9b31m",
    "rtl\u202e",
    ":smile:",
    "\u2028",
]


@pytest.mark.parametrize("name", NASTY)
def test_names_from_strangers_are_shown_escaped(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    file = f"{name.replace('/', '')}.safetensors"
    header = {name: {"dtype": name, "shape": [1], "data_offsets": [0, 1]}}
    tiny.write_raw(folder / file, header, b"x")
    tiny.write_tensors(folder / f"adapter_model.{file}", {"w": ("U8", [1])})
    done = check(folder)
    assert done.exit_code == 1
    for line in done.stdout.splitlines():
        assert line.isprintable(), line
    if name.isprintable():
        assert name in done.stdout
    code, found = document(folder)
    assert code == 1
    assert found["files"][0]["name"] == file
    assert found["problems"][0]["tensor"] == name


def test_a_path_from_a_stranger_is_shown_escaped(tmp_path: Path) -> None:
    for path in (tmp_path / "no\x1b[31m\nsuch", tmp_path / "[bold]"):
        done = check(path)
        assert done.exit_code == 2
        assert done.stderr.strip().isprintable()


def test_a_file_name_that_is_no_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(b"bad-\xff.safetensors")
    tiny.write_tensors(tmp_path / name, {"w": ("U8", [1])})
    code, found = document(tmp_path)
    assert code == 0
    json.dumps(found, ensure_ascii=False).encode("utf-8")
    assert check(tmp_path).exit_code == 0


def test_c13_a_dtype_of_any_length_is_shown_short(tmp_path: Path) -> None:
    header = {"w": {"dtype": "F" * 100_000, "shape": [1], "data_offsets": [0, 1]}}
    (tmp_path / "model.safetensors").write_bytes(tiny.raw_file(header, b"x"))
    done = check(tmp_path)
    assert done.exit_code == 1
    assert len(done.output) < 2_000


def test_it_starts_without_torch_and_prints_plainly(tmp_path: Path) -> None:
    tiny.write_tensors(tmp_path / "model.safetensors", {"w": ("U8", [9])})
    code = (
        "import sys\nfrom bench.cli import main\n"
        "try:\n    main()\nfinally:\n"
        "    heavy = {'torch', 'huggingface_hub', 'transformers', 'numpy'} & set(sys.modules)\n"
        "    sys.stderr.write(repr(sorted(heavy)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "check", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "[]")
    assert "\x1b" not in done.stdout
    assert "sound" in done.stdout
