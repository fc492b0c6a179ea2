"""Comparison runs: the command lines, the page cache that is proved, the differences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from bench.watch.isolate import IsolateError, checkpoint_files
from bench.watch.variants import comparisons, model_of, option_of, with_option
from tests.tiny_watch import engine, watched

SERVE = ["vllm", "serve", "models/a", "--port", "8000"]


@pytest.mark.parametrize(
    ("command", "model"),
    [
        (SERVE, "models/a"),
        (["vllm", "serve", "--model", "b", "--port", "1"], "b"),
        (["python", "-m", "vllm.entrypoints.openai.api_server", "--model=/w/c"], "/w/c"),
        (["vllm", "serve", "--enforce-eager", "models/a"], "models/a"),
        (["vllm", "serve", "--port", "8000"], None),
        (["python", "offline.py"], None),
        (["sh", "-c", "vllm serve models/a"], None),
    ],
)
def test_the_model_is_found_in_the_command_line(command: list[str], model: str | None) -> None:
    assert model_of(command) == model


def test_an_option_is_set_once_however_it_was_written() -> None:
    for given in (["--load-format", "pt"], ["--load-format=pt"], ["--load_format", "pt"], []):
        changed = with_option([*SERVE, *given, "--seed", "1"], "--load-format", "dummy")
        assert changed == [*SERVE, "--seed", "1", "--load-format", "dummy"]
        assert option_of(changed, "--load-format") == "dummy"


def test_each_run_differs_in_one_thing() -> None:
    commands, left_out = comparisons(SERVE)
    assert list(commands) == ["cold", "warm", "eager", "dummy"]
    assert commands["cold"] == commands["warm"] == SERVE
    assert commands["eager"] == [*SERVE, "--enforce-eager"]
    assert commands["dummy"] == [*SERVE, "--load-format", "dummy"]
    assert not left_out


def test_what_is_so_already_is_left_out_with_its_reason() -> None:
    commands, left_out = comparisons([*SERVE, "--enforce-eager", "--load-format=dummy"])
    assert list(commands) == ["warm"]
    assert set(left_out) == {"eager", "cold", "dummy"}


def checkpoint(folder: Path) -> Path:
    folder.mkdir()
    tensors = {"a.weight": torch.zeros(1 << 20, dtype=torch.bfloat16)}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    return folder


def test_the_files_are_those_that_an_engine_would_read(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model")
    (folder / "optimizer.pt").write_bytes(b"x")
    assert checkpoint_files(["vllm", "serve", str(folder)]) == [folder / "model.safetensors"]


def test_a_hub_id_is_looked_for_in_the_cache_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(IsolateError, match="not in the Hub's cache"):
        checkpoint_files(["vllm", "serve", "org/name"])
    with pytest.raises(IsolateError, match="no model in this command line"):
        checkpoint_files(["python", "offline.py"])


def test_four_starts_are_made_and_subtracted(tmp_path: Path) -> None:
    folder, record = checkpoint(tmp_path / "model"), tmp_path / "record.json"
    command = [*engine("isolated"), "serve", folder]
    done = watched("--isolate", "--json", "--record", record, "--", *command)
    found = json.loads(done.stdout)
    assert found == json.loads(record.read_text())
    assert list(found["runs"]) == ["cold", "warm", "eager", "dummy"]
    assert [run["exit_code"] for run in found["runs"].values()] == [0, 0, 0, 0]
    caches = {name: run["cache"] for name, run in found["runs"].items()}
    if caches["cold"]["resident_before"] is not None:
        assert caches["cold"]["resident_before"] <= 0.005
        assert caches["warm"]["resident_before"] == 1.0
    ways = {one["way"]: one for one in found["differences"]}
    assert set(ways) == {"cold", "eager", "dummy"}
    assert ways["eager"]["seconds"] == 3.0
    assert ways["eager"]["differences"] == []


def test_a_run_that_fails_is_1_and_the_others_are_told(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model")
    done = watched(
        "--isolate", "--json", "--", *engine("isolated"), "serve", folder, "--fail-eager", code=1
    )
    found = json.loads(done.stdout)
    assert [run["exit_code"] for run in found["runs"].values()] == [0, 0, 1, 0]
    assert {one["way"]: one["seconds"] for one in found["differences"]}["eager"] is None


def test_without_a_model_nothing_is_started() -> None:
    done = watched("--isolate", "--", *engine("plain"), code=2)
    assert b"no model in this command line" in done.stderr
    assert b"Starting to load" not in done.stderr
