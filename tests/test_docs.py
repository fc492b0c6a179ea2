"""README and benchmarks.md stay true: each command in them is run, or looked at, here.

Every line of a ```sh block must be known to RUN below by how it begins, so that a new command
can't slip in untested.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from bench.cli import main
from bench.options import OPTIONS
from bench.synth.write import make_checkpoint
from tests.tiny_records import write_run
from tests.tiny_report import load

ROOT = Path(__file__).parent.parent
DOCS = ["README.md", "benchmarks.md"]
BIN = Path(sys.executable).parent
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def commands() -> list[tuple[str, str]]:
    """(document, command) for each line of each shell block, comments cut off."""
    found = []
    for name in DOCS:
        for block in re.findall(r"```sh\n(.*?)```", (ROOT / name).read_text(), re.S):
            for line in block.splitlines():
                command = re.sub(r"\s+#.*$", "", line).strip()
                if command:
                    found.append((name, command))
    return found


def run(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, shell=True, cwd=cwd, env=env, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dest = tmp_path_factory.mktemp("docs") / "model"
    make_checkpoint(
        "qwen3-0.6b",
        dest,
        size=1 << 20,
        shards=2,
        format="safetensors",
        dtype=None,
        seed=0,
        progress=lambda done, total: None,
    )
    return dest


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the documents call a run, or a log -> one that is there."""
    folder = tmp_path_factory.mktemp("runs")
    samples = [load("parallel", 1.0, number) for number in (1, 2, 3)]
    return {
        **{f"runs/{name}": str(write_run(folder / name, samples)) for name in ("TIME", "A", "B")},
        "startup.log": str(next((ROOT / "tests/logs").glob("09_*.log"))),
    }


@pytest.mark.parametrize(("document", "command"), commands())
def test_documented_command(
    document: str, command: str, model: Path, runs: dict[str, str], tmp_path: Path
) -> None:
    words = shlex.split(command)
    storage = tmp_path / "storage"
    storage.mkdir()
    for written, real in {
        "/path/to/model": str(model),
        "/mnt/nvme": str(storage),
        "/mnt/nfs": str(storage),
        "/tmp/model": str(tmp_path / "made"),
        "/tmp/quantised": str(tmp_path / "quantised"),
        "vllm serve": "true",  # an engine that prints nothing
        "cuda": "cpu",
        **runs,
        "Qwen/Qwen3-0.6B": str(model),
    }.items():
        command = command.replace(written, real)
    if words[0] == "make":
        # -n: what make would run; the targets themselves are what CI and `make test` run
        done = run(command.replace("make", "make -n", 1), ROOT)
        assert done.returncode == 0, done.stderr
        assert "-m pytest" in done.stdout
        if "DEVICE=" in command:
            assert "--device=cpu" in done.stdout
        if "STORAGE=" in command:
            assert f"--storage='{storage}'" in done.stdout
            assert f"--model='{model}'" in done.stdout
    elif words[0] == "pytest":
        listed = {"--benchmark-disable", "--collect-only", "--plan"}
        if not listed & set(words):
            command += " --collect-only -q"  # the smoke mode itself runs in `make test`
        if "--benchmark-disable" in command:
            command += f" --size=2MiB --loader=example --run-dir={tmp_path / 'run'}"
        done = run(command, ROOT)
        assert done.returncode == 0, done.stdout + done.stderr
        assert any(word in done.stdout for word in ("bench_", "passed", "This run would measure"))
    elif words[0] == "coldload":
        done = run(command, tmp_path)
        # There is no run in an empty folder, no w8a8 in that run, and `true` is no engine.
        expected = 3 if words[1] in {"runs", "w8a8", "watch"} else 0
        assert done.returncode == expected, done.stdout + done.stderr
    else:
        pytest.fail(f"{document} has a command that no test knows: {command}")


def options_of_commands() -> set[str]:
    context = click.Context(main)
    found = (main.get_command(context, name) for name in main.list_commands(context))
    parameters = [one for command in found if command is not None for one in command.params]
    return {option for one in parameters for option in one.opts if option.startswith("--")}


def test_every_command_stands_in_the_readme() -> None:
    named = {shlex.split(line)[1] for _, line in commands() if line.startswith("coldload ")}
    assert set(main.list_commands(click.Context(main))) <= named


def test_options_named_in_the_documents_exist() -> None:
    ours = {f"--{name}" for name in OPTIONS} | options_of_commands()
    # in real output
    engines = set(OPTION.findall((ROOT / "bench/words/engine_settings.py").read_text()))
    against = set(OPTION.findall((ROOT / "bench/against_engine.py").read_text()))  # a module's own
    known = (
        ours
        | engines
        | against
        | {
            "--benchmark-only",
            "--benchmark-disable",
            "--benchmark-json",
            "--benchmark-save",
            "--benchmark-compare",
            "--collect-only",
            "--help",
        }
    )
    for name in DOCS:
        named = set(OPTION.findall((ROOT / name).read_text()))
        assert named <= known, f"{name} names options that don't exist: {named - known}"


def test_columns_are_explained() -> None:
    from bench.page.terminal import COLUMNS

    text = (ROOT / "benchmarks.md").read_text()
    explained = text[text.index("## Columns") :]
    for column in COLUMNS[2:]:  # the loader and its threads explain themselves
        key = column.title.split()[0]
        assert key in explained, f"benchmarks.md doesn't explain the column {column.title}"


def test_no_document_leads_nowhere() -> None:
    for name in DOCS:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / name).read_text()):
            assert (ROOT / target).exists(), f"{name} links to {target}"
