"""`coldload advise`: what to type, for people and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bench.cli import main
from tests.tiny_advice import MMAP, times
from tests.tiny_records import write_run
from tests.tiny_report import NET, NVME, STRANGER, golden_samples, unmeasured


def coldload(*args: str | Path) -> Result:
    return CliRunner().invoke(main, ["advise", *map(str, args)])


def test_the_command_tells_each_with_what_to_type(tmp_path: Path) -> None:
    samples = [*times("safetensors-mmap", 1.0, **MMAP), *times("pt-threads", 2.0, threads=2)]
    folder = write_run(tmp_path, samples)
    done = coldload(folder)
    assert done.exit_code == 0, done.output
    assert (
        "1. Load with pt-threads, 2 threads instead of safetensors-mmap: saves 0.49 s"
        in done.output
    )
    assert "> --load-format pt --model-loader-extra-config" in done.output
    assert "Costs: " in done.output
    document = json.loads(coldload(folder, "--json").stdout)
    assert document["engine"] == "vllm-0.33"
    (finding,) = document["findings"]
    assert finding["saving"]["passes"] == 3
    assert finding["saving"]["bounds"] == "range"
    older = json.loads(coldload(folder, "--json", "--for", "vllm-0.9.2").stdout)
    assert older["findings"] == []


def test_what_it_comes_to_in_a_start_of_the_engine(tmp_path: Path) -> None:
    samples = [*times("safetensors-mmap", 1.0, **MMAP), *times("pt-threads", 2.0, threads=2)]
    folder = write_run(tmp_path / "run", samples)
    log = tmp_path / "start.log"
    log.write_text(
        "INFO 11-30 10:00:00 [api_server.py:1] vLLM API server version 0.10.0\n"
        "INFO 11-30 10:00:30 [default_loader.py:262] Loading weights took 20.00 seconds\n"
        "INFO 11-30 10:01:40 [api_server.py:2] Application startup complete.\n"
    )
    document = json.loads(coldload(folder, "--explain", log, "--json").stdout)
    assert document["start"]["weights"] == 20.0
    assert document["findings"][0]["in_start"] == pytest.approx(10.0)
    assert "The same share of that start: 10.0 s" in coldload(folder, "--explain", log).output
    log.write_text("nothing of the kind\n")
    assert coldload(folder, "--explain", log).exit_code == 3
    assert coldload(folder, "--explain", tmp_path / "none").exit_code == 2


def test_nothing_to_advise_says_what_may_help(tmp_path: Path) -> None:
    done = coldload(write_run(tmp_path, times("pt", 1.0)))
    assert done.exit_code == 0
    assert "--passes=8" in done.output


@pytest.mark.parametrize(
    ("args", "code", "expected"),
    [
        (["nowhere"], 2, "No such file"),
        (["empty"], 3, "nothing was measured"),
        (["run:attic"], 2, "no storage is called"),
        (["run", "--for", "sglang"], 2, "expected one such as vllm-0.33"),
        (["run", "--for", "vllm-0.99"], 2, "ends at vllm-0.33"),
    ],
)
def test_what_cannot_be_advised_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], code: int, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(Path("run"), times("pt", 1.0))
    write_run(Path("empty"), [unmeasured("pt", "failed", "SIGBUS")])
    done = coldload(*args)
    assert done.exit_code == code
    assert expected in done.output
    again = coldload(*args, "--json")
    assert again.exit_code == code
    assert expected in json.loads(again.stdout)["error"]


def test_names_of_strangers_are_only_words(tmp_path: Path) -> None:
    odd = replace(NET, label=STRANGER)
    samples = [*golden_samples(), *times("pt", 9.0, storage=odd), *times("pt", 0.01, storage=NVME)]
    done = coldload(write_run(tmp_path, samples))
    assert done.exit_code == 0
    assert "\x1b" not in done.output
    assert "odd[red]" in done.output
