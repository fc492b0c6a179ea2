"""`coldload quantize`: what it writes, what it refuses, and that it goes on where it was."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

from bench.cli import main
from bench.quantize import write as writing
from bench.quantize.plan import WRITABLE, Stored
from bench.quantize.shard import ShardWriter, packed
from loaders.quantise import reference
from loaders.quantise.schemes import scheme
from tests import tiny_quantised as tiny


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes longer than all of these tests."""
    monkeypatch.setattr("loaders.quantise.kernels.no_compiler", lambda device: "not in this test")


def quantize(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["quantize", *map(str, arguments)])


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


LINEAR = [
    f"{tiny.LAYER}.{name}_proj.weight"
    for name in ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o")
] + [f"{tiny.LAYER}.mlp.{name}_proj.weight" for name in ("gate", "up", "down")]


@pytest.mark.parametrize("name", WRITABLE["compressed-tensors"])
def test_compressed_tensors(tmp_path: Path, name: str) -> None:
    source = tiny.model()
    folder = tiny.write(tmp_path / "src", source, shards=3)
    done = quantize(folder, tmp_path / "out", "--format", "compressed-tensors", "--scheme", name)
    assert done.exit_code == 0, done.output
    found = tensors_of(tmp_path / "out")
    only_weights = name == "int8-weight-only"
    for key, tensor in source.items():
        if key not in LINEAR:
            assert torch.equal(found.pop(key), tensor)
            continue
        expected = reference.quantise(tensor, scheme(name))
        assert torch.equal(found.pop(f"{key}_scale"), expected.scale)
        if only_weights:
            assert found.pop(f"{key}_shape").tolist() == list(tensor.shape)
            words = found.pop(f"{key}_packed").view(torch.uint8) ^ 0x80
            assert torch.equal(words.view(torch.int8)[:, : tensor.shape[1]], expected.values)
        else:
            values = found.pop(key)
            assert torch.equal(values.view(torch.uint8), expected.values.view(torch.uint8))
    assert found == {}
    config = config_of(tmp_path / "out")
    assert config["model_type"] == "llama"
    described = config["quantization_config"]
    assert described["quant_method"] == "compressed-tensors"
    assert "lm_head" in described["ignore"]
    assert (tmp_path / "out" / "tokenizer.json").exists()
    assert sorted(path.name for path in (tmp_path / "out").glob("*.safetensors")) == sorted(
        path.name for path in folder.glob("*.safetensors")
    )
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    checked = CliRunner().invoke(main, ["check", str(tmp_path / "out"), "--json"])
    assert json.loads(checked.stdout)["problems"] == []


def test_ascend(tmp_path: Path) -> None:
    source = tiny.model(experts=2)
    source[f"{tiny.LAYER}.self_attn.kv_b_proj.weight"] = tiny.weight(8, 8)
    folder = tiny.write(tmp_path / "src", source, shards=2)
    done = quantize(folder, tmp_path / "out", "--format", "ascend", "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["scheme"], document["quantised"]) == ("int8-channel-127", 10)
    found = tensors_of(tmp_path / "out")
    description = json.loads((tmp_path / "out" / "quant_model_description.json").read_text())
    assert description["model_quant_type"] == "W8A8_DYNAMIC"
    for key in found:
        assert description[key] == (
            "W8A8_DYNAMIC"
            if f"{key.removesuffix('_scale').removesuffix('_offset')}_scale" in found
            else "FLOAT"
        )
    name = f"{tiny.LAYER}.mlp.experts.1.down_proj.weight"
    expected = reference.quantise(source[name], scheme("int8-channel-127"))
    assert torch.equal(found[name], expected.values)
    assert torch.equal(found[f"{name}_scale"], expected.scale)
    assert found[f"{name}_offset"].tolist() == [[0.0]] * 8
    assert description[f"{tiny.LAYER}.mlp.gate.weight"] == "FLOAT"
    assert description[f"{tiny.LAYER}.self_attn.kv_b_proj.weight"] == "FLOAT"
    assert {path.name for path in (tmp_path / "out").glob("*.safetensors")} == {
        f"quant_model_weights-0000{n}-of-00002.safetensors" for n in (1, 2)
    }
    index = json.loads((tmp_path / "out/quant_model_weights.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(found)
    checked = CliRunner().invoke(main, ["check", str(tmp_path / "out"), "--json"])
    assert json.loads(checked.stdout)["problems"] == []


def test_c61_fused_parts_agree_or_nothing_is_written(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path / "src", tiny.model())
    out = tmp_path / "out"
    usual = (folder, out, "--format", "compressed-tensors")
    done = quantize(*usual, "--ignore", "re:.*q_proj")
    assert done.exit_code == 2
    for part in ("qkv_proj", "q_proj", "k_proj", "v_proj"):
        assert f"{tiny.LAYER}.self_attn.{part}" in done.stderr
    assert not out.exists()
    assert quantize(*usual, "--ignore", "re:.*(").exit_code == 2
    done = quantize(*usual, "--ignore", "re:.*qkv_proj", "--json")
    assert done.exit_code == 0, done.output
    ignored = json.loads(done.stdout)["ignored"]
    assert {f"{tiny.LAYER}.self_attn.{part}_proj" for part in "qkv"} < set(ignored)
    assert config_of(out)["quantization_config"]["ignore"] == ignored


def test_c62_experts_are_ignored_together(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path / "src", tiny.model(experts=3))
    usual = (folder, tmp_path / "out", "--format", "compressed-tensors")
    done = quantize(*usual, "--ignore", r"re:.*experts\.2\..*")
    assert done.exit_code == 2
    assert f"{tiny.LAYER}.mlp.experts.2.up_proj" in done.stderr
    done = quantize(*usual, "--ignore", f"{tiny.LAYER}.mlp.experts", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["quantised"] == 4


def test_c55_a_weight_that_isnt_finite_is_named(tmp_path: Path) -> None:
    source = tiny.model()
    source[LINEAR[0]][2, 2] = float("nan")
    folder = tiny.write(tmp_path / "src", source)
    done = quantize(folder, tmp_path / "out", "--format", "ascend")
    assert done.exit_code == 1
    assert LINEAR[0] in done.stderr
    assert "1 NaN" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_killed_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    folder = tiny.write(tmp_path / "src", tiny.model(), shards=3)
    whole = (folder, tmp_path / "whole", "--format", "compressed-tensors")
    assert quantize(*whole).exit_code == 0
    out = tmp_path / "out"
    usual = (folder, out, "--format", "compressed-tensors", "--json")
    seen: list[str] = []
    original = writing.write_shard

    def interrupted(shard: Any, *rest: Any) -> Any:
        seen.append(shard.name)
        if len(seen) == number + 1:
            Path(rest[1]).write_bytes(b"half")
            raise KeyboardInterrupt
        return original(shard, *rest)

    monkeypatch.setattr(writing, "write_shard", interrupted)
    done = quantize(*usual)
    assert done.exit_code == 130
    assert "goes on from there" in done.stderr
    assert not out.exists()
    staging = writing.staging_of(out)
    other = quantize(folder, out, "--format", "ascend")
    assert other.exit_code == 2
    assert "format" in other.stderr
    if number == 2:  # the disk lost what was written last
        (staging / seen[1]).write_bytes(b"lost")
    monkeypatch.setattr(writing, "write_shard", original)
    done = quantize(*usual)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["resumed"] == min(number, 1)
    assert not staging.exists()
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert sorted(path.name for path in out.iterdir()) == names
    for name in names:
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_source_that_changed_meanwhile_is_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny.write(tmp_path / "src", tiny.model())
    usual = (folder, tmp_path / "out", "--format", "compressed-tensors")
    monkeypatch.setattr(writing, "_finish", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
    assert quantize(*usual).exit_code == 130
    monkeypatch.undo()
    save_file(tiny.model(), folder / "model.safetensors")
    done = quantize(*usual)
    assert done.exit_code == 2
    assert "different: files" in done.stderr


def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path / "src", tiny.model())
    out = tmp_path / "out"
    out.mkdir()
    done = quantize(folder, out, "--format", "ascend", "--json")
    assert done.exit_code == 2
    assert "never overwritten" in json.loads(done.stdout)["error"]
    assert list(out.iterdir()) == []
    out.rmdir()
    out.symlink_to("nowhere")
    assert quantize(folder, out, "--format", "ascend").exit_code == 2


def test_other_files_are_copied_and_other_weights_are_not(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path / "src", tiny.model())
    (folder / "code").mkdir()
    (folder / "code" / "modeling.py").write_text("x = 1")
    (folder / "pytorch_model.bin").write_bytes(b"old")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "note").write_text("x")
    blob = tmp_path / "blob"
    shutil.move(folder / "tokenizer.json", blob)
    (folder / "tokenizer.json").symlink_to(blob)
    done = quantize(folder, tmp_path / "out", "--format", "compressed-tensors")
    assert done.exit_code == 0, done.output
    out = tmp_path / "out"
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()) == [
        "code/modeling.py", "config.json", "model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    assert not (out / "tokenizer.json").is_symlink()


def test_sources_that_cant_be_quantised(tmp_path: Path) -> None:
    def refused(name: str, tensors: dict[str, torch.Tensor], **more: Any) -> str:
        folder = tiny.write(tmp_path / name, tensors, **more)
        done = quantize(folder, tmp_path / "out", "--format", "compressed-tensors")
        assert done.exit_code == 2
        return done.stderr

    assert "quantised already (fp8" in refused(
        "fp8", tiny.model(), config={"quantization_config": {"quant_method": "fp8"}}
    )
    eight = {"l.up_proj.weight": torch.ones(2, 2, dtype=torch.int8)}
    assert "quantised already: l.up_proj.weight" in refused("int8", eight)
    stacked = {"l.mlp.experts.gate_up_proj": torch.ones(2, 4, 4, dtype=torch.bfloat16)}
    assert "experts stacked" in refused("stacked", stacked)
    assert "nothing to quantise" in refused("norms", {"norm.weight": torch.ones(4)})
    assert quantize(tmp_path / "no", tmp_path / "out", "--format", "ascend").exit_code == 2
    (tmp_path / "empty").mkdir()
    assert quantize(tmp_path / "empty", tmp_path / "out", "--format", "ascend").exit_code == 3
    done = quantize(
        tmp_path / "fp8", tmp_path / "out", "--format", "ascend", "--scheme", "fp8-block"
    )
    assert (done.exit_code, "int8-channel-127" in done.stderr) == (2, True)
    (tmp_path / "norms" / "model.safetensors").write_bytes(b"cut")
    assert quantize(tmp_path / "norms", tmp_path / "out", "--format", "ascend").exit_code == 1


def test_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny.write(tmp_path / "src", tiny.model())
    monkeypatch.setattr(writing, "free_bytes", lambda path: 10)
    done = quantize(folder, tmp_path / "out", "--format", "ascend")
    assert done.exit_code == 1
    assert "10 B" in done.stderr


def test_a_tied_head_is_ignored_by_name(tmp_path: Path) -> None:
    source = tiny.model()
    del source["lm_head.weight"]
    folder = tiny.write(
        tmp_path / "src", source, config={**tiny.CONFIG, "tie_word_embeddings": True}
    )
    assert quantize(folder, tmp_path / "out", "--format", "compressed-tensors").exit_code == 0
    assert config_of(tmp_path / "out")["quantization_config"]["ignore"] == ["lm_head"]


def test_the_file_writer_holds_to_what_was_announced(tmp_path: Path) -> None:
    announced = [
        Stored(name="b", dtype="int8", shape=(3,)),
        Stored(name="a", dtype="float32", shape=(2,)),
    ]
    with ShardWriter(tmp_path / "f", announced) as out:
        out.put("b", torch.tensor([1, 2, 3], dtype=torch.int8))
        with pytest.raises(ValueError, match="announced"):
            out.put("a", torch.zeros(3))
        with pytest.raises(ValueError, match="never written: a"):
            out.finish()
        out.put("a", torch.tensor([1.5, 2.5]))
        out.finish()
    found = load_file(tmp_path / "f")
    assert (found["a"].tolist(), found["b"].tolist()) == ([1.5, 2.5], [1, 2, 3])


def test_packing_as_the_library_does() -> None:
    helpers = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    for columns in (4, 6, 33):
        values = (torch.arange(3 * columns) % 256 - 128).to(torch.int8).reshape(3, columns)
        assert torch.equal(packed(values), helpers.pack_to_int32(values, 8))
