"""`coldload quantize` where something is odd, full, cut off or changes: one clear error, and a
source and a target that stay what they are."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file

from bench.cli import main
from bench.quantize import shard as sharding
from bench.quantize import write as writing
from bench.quantize.plan import Stored
from bench.quantize.shard import ShardWriter
from loaders.checkpoint.read import open_checkpoint
from tests import tiny_quantised as tiny

CT = ("--format", "compressed-tensors")


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes longer than all of these tests."""
    monkeypatch.setattr("loaders.quantise.kernels.no_compiler", lambda device: "not in this test")


def quantize(*arguments: object) -> Result:
    done = CliRunner().invoke(main, ["quantize", *map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def check(folder: Path) -> dict[str, Any]:
    return json.loads(CliRunner().invoke(main, ["check", str(folder), "--json"]).stdout)


def test_tensors_of_every_width_stay_as_they_are(tmp_path: Path) -> None:
    """4-bit elements, whose shape in a file isn't torch's; empty ones and scalars."""
    odd = {
        "four": torch.arange(8, dtype=torch.uint8).view(torch.float4_e2m1fn_x2).view(2, 4),
        "four.deep": torch.arange(24, dtype=torch.uint8).view(torch.float4_e2m1fn_x2).view(2, 3, 4),
        "e8m0": torch.arange(6, dtype=torch.uint8).view(torch.float8_e8m0fnu),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 4, dtype=torch.bfloat16),
        "bool": torch.tensor([True, False]),
        "complex": torch.tensor([1 + 2j]),
        "u16": torch.tensor([7], dtype=torch.uint16),
    }
    folder = tiny.write(tmp_path / "src", tiny.model() | odd)
    for form in ("compressed-tensors", "ascend"):
        done = quantize(folder, tmp_path / form, "--format", form)
        assert done.exit_code == 0, done.output
        assert check(tmp_path / form)["problems"] == []
        found = load_file(next((tmp_path / form).glob("*.safetensors")))
        for name, tensor in odd.items():
            assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
            raw = found[name].reshape(-1).view(torch.uint8)
            assert torch.equal(raw, tensor.reshape(-1).view(torch.uint8)), name


def test_a_shape_of_packed_elements_is_the_files(tmp_path: Path) -> None:
    stored = Stored(name="w", dtype="float4_e2m1fn_x2", shape=(2, 4))
    with ShardWriter(tmp_path / "f.safetensors", [stored]) as out:
        out.put("w", torch.zeros(2, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2))
        out.finish()
    raw = (tmp_path / "f.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert header["w"] == {"dtype": "F4", "shape": [2, 8], "data_offsets": [0, 8]}


def test_a_full_disk_is_not_the_sources_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny.write(tmp_path / "src", tiny.model())

    def full(self: ShardWriter, name: str, tensor: torch.Tensor) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sharding.ShardWriter, "put", full)
    done = quantize(folder, tmp_path / "out", *CT)
    assert done.exit_code == 1
    assert "No space left" in done.stderr
    assert "free some space; the same command goes on" in done.stderr
    assert "coldload check" not in done.stderr


@pytest.mark.parametrize("form", ["compressed-tensors", "ascend"])
@pytest.mark.parametrize("moment", ["before the rename", "after the rename"])
def test_a_run_killed_at_its_very_end_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, moment: str
) -> None:
    folder = tiny.write(tmp_path / "src", tiny.model(), shards=2)
    real = Path.rename

    class Killed(BaseException):
        pass

    def dying(self: Path, target: Path) -> Path:
        if self.name.endswith(".quantizing"):
            if moment == "after the rename":
                real(self, target)
            raise Killed
        return real(self, target)

    monkeypatch.setattr(Path, "rename", dying)
    with pytest.raises(Killed):
        writing.write_quantised(
            open_checkpoint(str(folder)),
            writing_plan(folder, form),
            tmp_path / "out",
            progress=lambda done, total: None,
        )
    monkeypatch.undo()
    monkeypatch.setattr("loaders.quantise.kernels.no_compiler", lambda device: "not in this test")
    done = quantize(folder, tmp_path / "out", "--format", form)
    if moment == "after the rename":
        assert done.exit_code == 2
        assert "exists already" in done.stderr
    else:
        assert done.exit_code == 0, done.output
        assert "2 files from a run before" in done.stdout
        assert not (tmp_path / "out" / writing.STATE).exists()
    assert check(tmp_path / "out")["problems"] == []
    assert not writing.staging_of(tmp_path / "out").exists()


def writing_plan(folder: Path, form: str) -> Any:
    from bench.quantize.plan import plan

    return plan(open_checkpoint(str(folder)), format=form, scheme_name=None)


def test_a_killed_process_goes_on_and_another_scheme_is_refused(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path / "src", tiny.model(), shards=3)
    program = (
        "import os, signal, sys\n"
        "from loaders.quantise import kernels\n"
        "kernels.no_compiler = lambda device: 'no'\n"
        "from bench.quantize import write\n"
        "real, done = write._save, []\n"
        "def save(path, state):\n"
        "    real(path, state)\n"
        "    if len(state['done']) == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "write._save = save\n"
        "from bench.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    arguments = ["quantize", str(folder), str(tmp_path / "out"), *CT]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    other = quantize(folder, tmp_path / "out", *CT, "--scheme", "fp8-channel")
    assert other.exit_code == 2
    assert "a run with other settings began there (different: scheme" in other.stderr
    same = quantize(folder, tmp_path / "out", *CT, "--json")
    assert json.loads(same.stdout)["resumed"] == 2
    assert check(tmp_path / "out")["problems"] == []


@pytest.mark.parametrize("change", ["other shape", "same shape", "gone", "cut off"])
def test_a_source_that_changes_while_it_is_read_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    folder = tiny.write(tmp_path / "src", tiny.model(), shards=2)
    second = folder / "model-00002-of-00002.safetensors"
    content = second.read_bytes()
    tensors = load_file(second)
    real = writing.write_shard

    def changing(shard: Any, *more: Any) -> Any:
        found = real(shard, *more)
        if shard.source != second.name:
            second.unlink()
            if change == "same shape":
                second.write_bytes(content[:-8] + bytes(8))
            elif change == "cut off":
                second.write_bytes(content[: len(content) // 2])
            elif change == "other shape":
                from safetensors.torch import save_file

                save_file({name: tensor[:1].clone() for name, tensor in tensors.items()}, second)
        return found

    monkeypatch.setattr(writing, "write_shard", changing)
    done = quantize(folder, tmp_path / "out", *CT)
    assert done.exit_code == 1
    assert second.name in done.stderr
    assert not (tmp_path / "out").exists()
    if "shape" in change:
        assert "changed since" in done.stderr


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_an_address_is_no_folder_and_its_password_stays_unsaid(
    tmp_path: Path, more: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny.write(tmp_path / "src", tiny.model())
    monkeypatch.chdir(tmp_path)
    for places in (["http://me:s3cr3t@127.0.0.1:1/m", "out"], ["src", "s3://me:s3cr3t@bucket/m"]):
        done = quantize(*places, *CT, *more)
        assert done.exit_code == 2
        assert "expected a folder of this host, found an address" in done.stderr
        assert "s3cr3t" not in done.output
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("dest", ["", ".", "/", "src"])
def test_what_is_no_new_folder_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dest: str
) -> None:
    folder = tiny.write(tmp_path / "src", tiny.model())
    monkeypatch.chdir(tmp_path)
    done = quantize(folder, dest, *CT)
    assert done.exit_code == 2
    assert list(tmp_path.iterdir()) == [folder]


def test_a_target_within_the_source_copies_nothing_of_itself(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path / "src", tiny.model())
    (folder / "original").mkdir()
    (folder / "original" / "params.json").write_text("{}")
    for name in ("one", "two"):
        done = quantize(folder, folder / name, *CT)
        assert done.exit_code == 0, done.output
        assert check(folder / name)["problems"] == []
    there = sorted(str(path.relative_to(folder / "two")) for path in (folder / "two").rglob("*"))
    assert "original/params.json" in there
    assert not any(path.startswith("one") for path in there)


def test_a_source_that_may_only_be_read(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path / "src", tiny.model())
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    try:
        done = quantize(folder, tmp_path / "out", *CT)
        assert done.exit_code == 0, done.output
        assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
        assert os.access(tmp_path / "out" / "tokenizer.json", os.W_OK)
    finally:
        folder.chmod(0o755)


@pytest.mark.parametrize("ignore", ["lm_haed", "re:.*nothing", "", "re:model.layers.7"])
def test_an_ignore_that_means_nothing_is_said(tmp_path: Path, ignore: str) -> None:
    folder = tiny.write(tmp_path / "src", tiny.model())
    done = quantize(folder, tmp_path / "out", *CT, "--ignore", ignore)
    assert done.exit_code == 2
    assert "means no module" in done.stderr
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("ignore", ["re:(", "re:*", "re:[", "re:\\"])
def test_an_expression_that_is_none_is_named(tmp_path: Path, ignore: str) -> None:
    folder = tiny.write(tmp_path / "src", tiny.model())
    done = quantize(folder, tmp_path / "out", *CT, "--ignore", ignore)
    assert done.exit_code == 2
    assert "is no regular expression" in done.stderr


def test_ignoring_what_is_left_alone_anyway_is_fine(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path / "src", tiny.model())
    done = quantize(folder, tmp_path / "out", *CT, "--ignore", "lm_head", "--ignore", "re:.*qkv_pr")
    assert done.exit_code == 0, done.output


def test_layers_named_output_are_no_heads(tmp_path: Path) -> None:
    """BERT calls a layer of each block `attention.output.dense`."""
    tensors = {
        "encoder.layer.0.attention.output.dense.weight": tiny.weight(8, 8),
        "output.weight": tiny.weight(8, 8),
        "score.weight": tiny.weight(8, 8),
    }
    folder = tiny.write(tmp_path / "src", tensors)
    done = quantize(folder, tmp_path / "out", *CT, "--json")
    assert json.loads(done.stdout)["quantised"] == 1
    assert set(json.loads(done.stdout)["ignored"]) == {"output", "score", "lm_head"}


def test_a_description_of_another_quantiser_is_refused(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path / "src", tiny.model())
    (folder / "quant_model_description.json").write_text('{"model_quant_type": "W8A8"}')
    done = quantize(folder, tmp_path / "out", *CT)
    assert done.exit_code == 2
    assert "quant_model_description.json" in done.stderr


def test_links_of_a_download_cache(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path / "blobs", tiny.model(), shards=2)
    snapshot = tmp_path / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for path in folder.iterdir():
        (snapshot / path.name).symlink_to(path)
    (snapshot / "dangling.txt").symlink_to(tmp_path / "none")
    done = quantize(snapshot, tmp_path / "out", *CT)
    assert done.exit_code == 0, done.output
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))
    assert check(tmp_path / "out")["problems"] == []


@pytest.mark.parametrize("form", ["compressed-tensors", "ascend"])
@pytest.mark.parametrize("name", ["model.safetensors", "model-00001-of-00002.safetensors", "x"])
def test_one_file_of_several_is_a_checkpoint(tmp_path: Path, form: str, name: str) -> None:
    """Under a name that needs no index: its own may say that others belong to it."""
    folder = tiny.write(tmp_path / "src", tiny.model())
    name = name if name.endswith(".safetensors") else f"{name}.safetensors"
    (folder / "model.safetensors").rename(folder / name)
    done = quantize(folder / name, tmp_path / "out", "--format", form)
    assert done.exit_code == 0, done.output
    assert check(tmp_path / "out")["problems"] == []
    if form == "compressed-tensors":
        assert (tmp_path / "out" / "model.safetensors").exists()
