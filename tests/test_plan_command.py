"""`coldload plan` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bench.cli import main
from tests.tiny import write_tensors
from tests.tiny_plans import decoder

GIB = 1 << 30
KEYS = {"rank", "kept_bytes", "padding_bytes", "weights_bytes", "read_bytes", "by_class", "layers"}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["plan", *arguments])


def document(*arguments: str) -> dict:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def folder(at: Path, made=None, config=None) -> str:
    tensors, own = made or decoder()
    at.mkdir(exist_ok=True)
    write_tensors(
        at / "model.safetensors", {name: ("BF16", list(s)) for name, s in tensors.items()}
    )
    if config is not False:
        (at / "config.json").write_text(json.dumps(config or own))
    return str(at)


def test_a_folder_in_bytes_by_rank(tmp_path):
    found = document(folder(tmp_path / "m"), "--tp", "2")
    assert (found["ok"], found["error"], found["rules"]) == (True, None, "dense")
    assert [one["rank"] for one in found["ranks"]] == [0, 1]
    for one in found["ranks"]:
        assert one.keys() >= KEYS
        read = one["read_bytes"]
        assert read["all"] == found["tensor_bytes"] == read["ep_filter"]
        assert read["slice"] == one["kept_bytes"] < read["all"]
        assert sum(one["by_class"].values()) == one["kept_bytes"]
    assert found["kept_bytes"] == sum(one["kept_bytes"] for one in found["ranks"])
    assert found["replication"] > 1
    assert found["matches"] == []
    assert found["kv"]["block_bytes"] == 2 * 16 * 1 * 3 * 2
    assert found["kv"]["num_gpu_blocks"] is None


def test_a_shape_of_experts_with_ep_and_its_filter():
    found = document("qwen3-30b-a3b", "--tp", "8", "--ep", "8")
    for one in found["ranks"]:
        assert one["experts"] == 16
        read = one["read_bytes"]
        skipped = found["tensor_bytes"] * 0.949 * 7 / 8
        assert read["all"] - read["ep_filter"] == pytest.approx(skipped, rel=0.01)
        assert read["slice"] < read["ep_filter"] < read["all"] == 61_064_245_248
    old = (
        document("qwen3-30b-a3b", "--dp", "6", "--ep", "6", "--engine", "vllm-0.9")
    )  # fmt: skip
    assert [one["experts"] for one in old["ranks"]] == [21] * 5 + [23]
    assert all(one["read_bytes"]["ep_filter"] == 61_064_245_248 for one in old["ranks"])
    new = document("qwen3-30b-a3b", "--dp", "6", "--ep", "6")
    assert [one["experts"] for one in new["ranks"]] == [22, 22, 21, 21, 21, 21]


def test_stages_of_a_pipeline_and_what_no_rank_keeps():
    found = document("qwen3-0.6b", "--pp", "3", "--tp", "2")
    assert [one["layers"] for one in found["ranks"]][::2] == [[0, 9], [9, 19], [19, 28]]
    assert list(found["skipped"].values()) == [151936 * 1024 * 2]
    assert "embedding" not in found["ranks"][2]["by_class"]
    assert "embedding" in found["ranks"][4]["by_class"]


def test_the_kv_pool_by_the_formula():
    found = document(
        "llama-3.1-8b", "--device-memory", "80GiB", "--gpu-memory-utilization", "0.9",
        "--peak", "20GiB", "--swap-space", "4", "--max-model-len", "8192",
    )["kv"]  # fmt: skip
    block = 32 * 2 * 16 * 8 * 128 * 2
    blocks = int(80 * GIB * 0.9 - 20 * GIB) // block
    assert found["block_bytes"] == block
    assert found["num_gpu_blocks"] == blocks
    assert found["num_cpu_blocks"] == 4 * GIB // block
    assert found["tokens"] == blocks * 16
    assert found["concurrency"] == blocks / 512
    old = document("llama-3.1-8b", "--engine", "vllm-0.6.3", "--device-memory", "80GiB")
    assert old["kv"]["num_cpu_blocks"] == 2048, "that engine's own default of 4 GiB"
    assert any("upper bound" in note for note in old["notes"])
    full = document("llama-3.1-8b", "--device-memory", "10GiB")
    assert full["kv"]["num_gpu_blocks"] == 0
    assert any("no room" in note for note in full["notes"])


def test_per_card_or_total():
    one = document("llama-3.1-70b", "--tp", "8")["ranks"][0]["weights_bytes"] / GIB
    asked = document("llama-3.1-70b", "--weights-gb", f"{one:.4f}")
    assert asked["weights"]["meaning"] == "per worker"
    assert asked["weights"]["verdict"].startswith("Per card: ")
    best = asked["matches"][0]
    assert (best["tp"], best["pp"], best["dp"], best["ep"]) == (8, 1, 1, 1)
    assert abs(best["deviation"]) < 1e-4
    spread = [abs(match["deviation"]) for match in asked["matches"]]
    assert spread == sorted(spread) or max(spread[:3]) < 0.05
    stated = document("llama-3.1-70b", "--tp", "8", "--weights-gb", f"{one:.4f}")
    assert stated["weights"]["meaning"] == "per worker"
    total = document("llama-3.1-70b", "--tp", "8", "--weights-gb", f"{8 * one:.4f}")
    assert total["weights"]["meaning"] == "whole model"
    assert total["weights"]["verdict"].startswith("Total: ")
    wrong = document("llama-3.1-70b", "--tp", "8", "--weights-gb", f"{1.4 * one:.4f}")
    assert wrong["weights"]["meaning"] == "neither"
    whole = document("llama-3.1-70b", "--weights-gb", f"{8 * one:.4f}")
    assert whole["weights"]["meaning"] == "whole model"


def test_the_pieces_of_one_rank(tmp_path):
    path = folder(tmp_path / "m")
    found = document(path, "--tp", "2", "--rank", "1")
    fused = next(one for one in found["parameters"] if "gate_up" in one["name"])
    assert fused["shape"] == [8, 12]
    assert [(piece["start"], piece["stop"]) for piece in fused["pieces"]] == [(4, 8), (4, 8)]
    data = Path(path, "model.safetensors").stat().st_size
    for one in found["parameters"]:
        for piece in one["pieces"]:
            assert 0 < piece["file_range"]["offset"] < data
    assert "gate_up_proj.weight" in run(path, "--tp", "2", "--rank", "1").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["llama-3.1-8b", "--tp", "3"], 2, "32 attention heads"),
        (["llama-3.1-8b", "--tp", "0"], 2, "tp: expected 1"),
        (["llama-3.1-8b", "--tp", "2", "--ep", "2"], 2, "no experts"),
        (["qwen3-30b-a3b", "--tp", "8", "--ep", "4"], 2, "ep 4 isn't tp 8"),
        (["llama-3.1-8b", "--engine", "x"], 2, "vllm-VERSION"),
        (["llama-3.1-8b", "--weights-gb", "-1"], 2, "--weights-gb"),
        (["llama-3.1-8b", "--weights-gb", "nan"], 2, "--weights-gb"),
        (["llama-3.1-8b", "--device-memory", "64"], 2, "64GiB"),
        (["llama-3.1-8b", "--device-memory", "much"], 2, "--device-memory"),
        (["llama-3.1-8b", "--gpu-memory-utilization", "90"], 2, "at most 1"),
        (["llama-3.1-8b", "--swap-space", "-1"], 2, "--swap-space"),
        (["llama-3.1-8b", "--block-size", "0"], 2, "--block-size"),
        (["llama-3.1-8b", "--max-model-len", "0"], 2, "--max-model-len"),
        (["llama-3.1-8b", "--rank", "1"], 2, "0 to 0"),
        (["llama-3.1-8b", "--rules", "/nothing.toml"], 2, "/nothing.toml"),
        (["/nothing/here"], 2, "no such file"),
    ],
)
def test_wrong_usage_is_one_clear_error(arguments, code, said):
    for more in ([], ["--json"]):
        result = run(*arguments, *more)
        assert result.exit_code == code
        assert said in (json.loads(result.stdout)["error"] if more else result.stderr)
        assert "Traceback" not in result.output


def test_faulty_checkpoints_and_empty_folders(tmp_path):
    without = folder(tmp_path / "without", config=False)
    assert run(without).exit_code == 1
    assert "config.json" in run(without).stderr
    (tmp_path / "empty").mkdir()
    assert run(str(tmp_path / "empty")).exit_code == 3
    cut = folder(tmp_path / "cut")
    file = Path(cut, "model.safetensors")
    file.write_bytes(file.read_bytes()[:-5])
    assert run(cut).exit_code == 1
    assert run(without, "--dtype", "float16").exit_code == 2


def test_people_get_a_table_and_sentences():
    out = run("deepseek-v3", "--tp", "8", "--ep", "8", "--weights-gb", "79.5").stdout
    assert "0-7" in out
    assert "MLA" in out
    assert "draft layer" in out
    assert "Per card: 79.5000 GB" in out
