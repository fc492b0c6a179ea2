"""`coldload explain`: what it prints, exit codes, comparison of runs, savings, standard input."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from bench.cli import main
from bench.explain.fleet import FORMULA

TESTS = Path(__file__).parent
LOGS = TESTS / "logs"
ASCEND = LOGS / "01_ascend-multithread-74shards.log"
KEYS = {
    "log", "timeline", "diagnosis", "savings", "phases", "evidence", "model", "dtype", "engine",
    "quantization", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
    "gpu_memory_utilization", "load_format", "max_model_len", "max_num_batched_tokens",
    "max_num_seqs", "block_size", "swap_space", "enforce_eager", "max_seq_len_to_capture",
    "num_gpu_blocks_override", "seed", "vllm_version", "device", "status", "failure_kind",
    "failure", "tp_ranks", "ep_ranks", "pp_ranks", "dp_engines",
}  # fmt: skip
PHASES = {
    "weights_gb", "weights_unit", "weights_gb_by_worker", "weights_seconds", "load_model_seconds",
    "shards_total", "shards_done", "shard_read_seconds", "download_seconds", "profiling_seconds",
    "num_gpu_blocks", "num_cpu_blocks", "kv_cache_tokens", "compile_seconds", "graph_capture_secs",
    "init_engine_secs", "startup_wall_secs",
}  # fmt: skip


def explain(*arguments: object, **more: Any) -> Result:
    return CliRunner().invoke(main, ["explain", *map(str, arguments)], **more)


def document(*arguments: object) -> Any:
    done = explain(*arguments, "--json")
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    return json.loads(done.stdout)


def codes(found: dict[str, Any]) -> list[str]:
    return [one["code"] for one in found["diagnosis"]]


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("log", "golden"),
    [("01_ascend-multithread-74shards", "ready"), ("15_v0-fail-memory-profiling-zero-weights",
                                                   "failed")],
)  # fmt: skip
def test_c95_c109_what_is_printed(log: str, golden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(LOGS)
    done = explain(f"{log}.log")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == (TESTS / f"golden/explain-{golden}.txt").read_text()


def test_json_yaml_and_the_record_hold_the_fixed_names(tmp_path: Path) -> None:
    found = document(ASCEND, "--record", tmp_path / "r.yaml")
    assert set(found) == KEYS
    assert set(found["phases"]) == PHASES
    assert yaml.safe_load(explain(ASCEND, "--yaml").stdout) == found
    kept = yaml.safe_load((tmp_path / "r.yaml").read_text())
    assert kept == {key: value for key, value in found.items() if key in kept}
    assert set(kept) == KEYS - {"log", "timeline", "diagnosis", "savings"}


def test_every_figure_has_its_lines() -> None:
    lines = ASCEND.read_text().split("\n")
    found = document(ASCEND)
    for key, value in found["phases"].items():
        if value not in (None, {}):
            assert found["evidence"][key], key
    for key, word in (("weights_seconds", "216.33"), ("graph_capture_secs", "28 secs"),
                      ("kv_cache_tokens", "181,248"), ("shard_read_seconds", "00:17")):  # fmt: skip
        assert word in lines[found["evidence"][key][0] - 1]


def test_several_logs_make_an_array_and_an_unknown_one_exits_3(tmp_path: Path) -> None:
    assert [one["status"] for one in document(ASCEND, LOGS / "16_v1-cut-mid-load.log")] == [
        "ready", "incomplete",
    ]  # fmt: skip
    unknown = write(tmp_path / "sglang.log", "[2025-01-01 10:00:00 TP0] Load weight begin.", "ok")
    done = explain(unknown)
    assert (done.exit_code, done.stdout) == (3, "")
    assert "no engine lines found" in done.stderr
    both = explain(unknown, ASCEND, "--json")
    assert both.exit_code == 3
    assert ["error" in one for one in json.loads(both.stdout)] == [True, False]
    assert explain(write(tmp_path / "empty.log")).exit_code == 3


@pytest.mark.parametrize(
    "arguments",
    [["/no/such.log"], [str(LOGS)], [ASCEND, "--set", "colour=red"], [ASCEND, "--set", "seed"],
     [ASCEND, "--json", "--yaml"], [ASCEND, "--shared-bandwidth", "1GB/s"],
     [ASCEND, "--replicas", "2", "--shared-bandwidth", "fast"], [ASCEND, ASCEND, "--plot", "x"],
     [ASCEND, "--run", "/no/run"], [ASCEND, "--eager", "/no/such.log"]],
)  # fmt: skip
def test_wrong_usage_and_unreadable_paths_exit_2(arguments: list[object]) -> None:
    done = explain(*arguments)
    assert done.exit_code == 2
    assert done.stderr
    assert "Traceback" not in done.output


def test_set_comes_before_the_log_and_leaves_no_evidence() -> None:
    found = document(ASCEND, "--set", "tensor-parallel-size=16", "--set", "dtype=float16")
    assert (found["tensor_parallel_size"], found["dtype"]) == (16, "float16")
    assert "dtype" not in found["evidence"]


def test_standard_input_as_a_file_and_packed() -> None:
    for data in (ASCEND.read_bytes(), gzip.compress(ASCEND.read_bytes())):
        done = subprocess.run(
            [sys.executable, "-c", "from bench.cli import main; main()", "explain", "-", "--json"],
            input=data, capture_output=True, check=True, cwd=TESTS.parent,
            env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
        )  # fmt: skip
        found, plain = json.loads(done.stdout), document(ASCEND)
        assert found["phases"] == plain["phases"]
        assert found["evidence"] == plain["evidence"]


def test_a_picture_of_the_timeline(tmp_path: Path) -> None:
    assert explain(ASCEND, "--plot", tmp_path / "out.svg").exit_code == 0
    text = (tmp_path / "out.svg").read_text()
    assert text.startswith("<svg")
    assert "weights 218.7 s, 68%" in text


def test_stages_add_up_to_the_wall_time_with_what_no_line_explains() -> None:
    for path in sorted(LOGS.glob("*.log")):
        found = document(path)["timeline"]
        if found["wall"] is not None:
            whole = sum(one["seconds"] for one in found["stages"] if one["within"] is None)
            assert whole + found["unexplained"] == pytest.approx(found["wall"], abs=2e-3)
    stages = {one["name"]: one for one in document(ASCEND)["timeline"]["stages"]}
    assert stages["weights"]["slowest"] == "Worker_TP2_EP2"
    assert stages["weights"]["share"] == pytest.approx(218.68 / 321)
    assert len(stages["graph capture"]["workers"]) == 8


def test_findings_of_the_logs() -> None:
    def of(name: str) -> list[str]:
        return codes(document(next(LOGS.glob(f"**/{name}*.log"))))

    assert of("01_") == ["weights_dominant", "bar_is_not_bytes"]
    assert of("15_") == ["profiling_failed", "implausible_weights"]
    assert "pool_too_small" in of("v1-fail-pool")
    assert of("19_")[0] == "bad_checkpoint"
    assert of("16_")[0] == "incomplete"
    assert "failed_later" in of("25_")
    assert "file_system" in of("25_")
    assert {"bar_is_not_bytes", "file_system"} <= set(of("v1-031"))
    assert "restarted" in of("v1-restart")
    assert "option_unknown" not in of("v1-028-runai")


ARGUMENTS = (
    "(APIServer pid=1) INFO 01-02 10:00:00 [utils.py:1] non-default args: {'model': 'm', %s}"
)
VERSION = "(APIServer pid=1) INFO 01-02 10:00:00 [api_server.py:1] vLLM API server version %s"


@pytest.mark.parametrize(
    ("options", "version", "code", "word"),
    [
        ("'model_loader_extra_config': {'enable_multithread_load': 'true'}", "0.24.0",
         "option_type", "refuses"),
        ("'model_loader_extra_config': {'enable_multithread_load': 'false'}", "0.23.0",
         "option_type", "takes any text for true"),
        ("'model_loader_extra_config': '{\"enable_multithread_load\": \"true\"}'", "0.33.0",
         "option_type", "refuses"),
        ("'safetensors_load_strategy': 'prefetch', 'model_loader_extra_config': "
         "{'enable_multithread_load': True}", "0.33.0", "option_conflict", "refuses"),
        ("'safetensors_load_strategy': 'eager', 'model_loader_extra_config': "
         "{'enable_multithread_load': True}", "0.11.0", "option_conflict", "ignores"),
        ("'model_loader_extra_config': {'enable_multithread_load': True}", "0.10.1",
         "option_unknown", "0.10.2"),
        ("'load_format': 'gguf'", "0.25.0", "option_unknown", "gguf"),
        ("'load_format': 'safetensors', 'model_loader_extra_config': {'concurrency': 4}", "0.20.0",
         "option_unknown", "concurrency"),
    ],
)  # fmt: skip
def test_options_that_a_version_refuses_or_ignores(
    tmp_path: Path, options: str, version: str, code: str, word: str
) -> None:
    found = document(write(tmp_path / "x.log", VERSION % version, ARGUMENTS % options))
    (one,) = [one for one in found["diagnosis"] if one["code"].startswith("option")]
    assert one["code"] == code
    assert word in one["text"]
    assert one["evidence"] == [2]


def test_a_figure_of_the_whole_model_on_every_card(tmp_path: Path) -> None:
    log = next(LOGS.glob("**/v1-cri-*.log")).read_text().replace("org/big", "org/big-18b")
    path = tmp_path / "x.log"
    path.write_text(log.replace("quantization=fp8", "quantization=None"))
    (one,) = [one for one in document(path)["diagnosis"] if one["code"] == "parallel_mismatch"]
    assert "whole" in one["text"]
    path.write_text(path.read_text().replace("33.1051", "16.8"))
    assert "parallel_mismatch" not in codes(document(path))


@pytest.mark.parametrize(
    ("figure", "quantised", "line", "fires"),
    [
        ("17.9", "fp8", "", False),  # bf16 in, fp8 out: about half of an even share
        ("17.9", "fp8_per_block", "", False),
        ("17.9", "None", "", True),
        ("33.1", "fp8", "", False),  # it was fp8 already
        ("33.1", "fp8", "Online quantization as part of model loading took 3.1 seconds", True),
        ("66.2", "fp8", "", True),
        ("8.9", "bitsandbytes", "", False),
        ("8.9", "fp8", "", True),
    ],
)
def test_what_is_quantised_while_loading_is_less_than_an_even_share(
    tmp_path: Path, figure: str, quantised: str, line: str, fires: bool
) -> None:
    log = write(
        tmp_path / "x.log",
        "INFO 01-01 10:00:00 [core.py:1] Initializing a V1 LLM engine (v0.33.0) with config: "
        f"model='m', dtype=torch.bfloat16, tensor_parallel_size=2, quantization={quantised}\n",
        "INFO 01-01 10:00:01 [w.py:1] Filesystem type for checkpoints: EXT4. Checkpoint size: "
        "66.20 GiB. Available RAM: 400.00 GiB.\n",
        f"INFO 01-01 10:00:02 [w.py:1] {line}\n",
        f"INFO 01-01 10:00:09 [g.py:1] Model loading took {figure} GiB memory and 7.5 seconds\n",
    )
    assert ("parallel_mismatch" in codes(document(log))) is fires


def test_engines_that_spread_experts_hold_less_than_a_tensor_parallel_share(
    tmp_path: Path,
) -> None:
    log = next(LOGS.glob("23_*.log")).read_text()
    size = "INFO 05-29 02:55:50 [w.py:1] Filesystem type for checkpoints: EXT4. Checkpoint size: "
    path = write(tmp_path / "x.log", f"{size}270.00 GiB. Available RAM: 900.00 GiB.\n", log)
    assert "parallel_mismatch" not in codes(document(path))  # 73.41 of 270 / 2


def test_a_shutdown_is_told_from_a_crash_after_readiness() -> None:
    steps = {
        name: [one["next_step"] for one in document(path)["diagnosis"]
               if one["code"] == "failed_later"]
        for name in ("25_", "v1-028") for path in LOGS.glob(f"**/{name}*.log")
    }  # fmt: skip
    assert "harmless" in steps["25_"][0]
    assert "another matter" in steps["v1-028"][0]


def test_isolation_subtracts_and_says_what_was_not_equal(tmp_path: Path) -> None:
    base = next(LOGS.glob("20_*.log"))
    log = base.read_text()
    eager = tmp_path / "eager.log"
    eager.write_text(
        log.replace("enforce_eager=False", "enforce_eager=True")
        .replace("68.88", "7.88")
        .replace("max_seq_len=8192", "max_seq_len=4096")
    )
    dummy = tmp_path / "dummy.log"
    dummy.write_text(
        log.replace("LoadFormat.AUTO", "LoadFormat.DUMMY").replace("191.702334", "1.702334")
    )
    found = document(base, "--eager", eager, "--dummy", dummy, "--override", base)["isolation"]
    by_way = {one["way"]: one for one in found}
    assert by_way["eager"]["seconds"] == 61.0
    assert by_way["eager"]["differences"] == ["max_model_len: 8192 here, 4096 there"]
    assert (by_way["dummy"]["seconds"], by_way["dummy"]["doubt"]) == (190.0, 0.0)
    assert by_way["dummy"]["differences"] == []
    assert by_way["override"]["seconds"] is None
    assert "didn't fail" in by_way["override"]["verdict"]
    assert "not equal: max_model_len" in explain(base, "--eager", eager).stdout
    assert document(base, "--eager", base)["isolation"][0]["differences"] == [
        "enforce_eager is False in both: this is the setting that should differ"
    ]


@pytest.mark.parametrize(
    ("other", "word"),
    [("20_", "the pool"), ("15_", "profiling:"), ("19_", "neither"), ("16_", "incomplete")],
)
def test_profiling_or_pool(other: str, word: str) -> None:
    base = next(LOGS.glob("own/v1-fail-pool*.log"))
    found = document(base, "--override", next(LOGS.glob(f"{other}*.log")))
    assert word in found["isolation"][0]["verdict"]


def test_savings_are_bounded_by_the_logs_own_figures() -> None:
    rows = {one["remedy"]: one for one in document(ASCEND)["savings"]}
    assert rows["faster storage"]["at_most"] == 216.33
    assert rows["snapshot (sharded_state)"]["at_most"] == 218.68
    assert rows["offline w8a8"]["at_most"] is None  # it is quantised already
    assert rows["--enforce-eager"]["at_most"] == 28
    assert all(one["expected"] is None for one in rows.values())
    dummy = {one["remedy"]: one for one in document(next(LOGS.glob("17_*.log")))["savings"]}
    assert dummy["faster storage"]["at_most"] is None  # C111: no disk rate from random weights


def test_fleet_by_its_stated_formula() -> None:
    path = next(LOGS.glob("13_*.log"))  # 104 s, weights 5.211 s, checkpoint 21.30 GiB
    found = document(path, "--replicas", 200, "--shared-bandwidth", "25GB/s",
                     "--starts-per-day", 40)["fleet"]  # fmt: skip
    shared = 200 * 21.30 * 2**30 / 25e9
    assert found["shared_seconds"] == pytest.approx(shared, abs=1e-3)
    assert found["seconds_until_all_up"] == pytest.approx(104 - 5.211011 + shared, abs=1e-2)
    assert found["limit"] == "shared"
    assert found["hours_per_month"] == pytest.approx(40 * 30 * 104 / 3600, abs=1e-3)
    assert found["formula"] == FORMULA
    alone = document(path, "--replicas", 2)["fleet"]
    assert (alone["limit"], alone["seconds_until_all_up"]) == ("node", 104)
