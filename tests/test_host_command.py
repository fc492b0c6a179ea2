"""`coldload host`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.cli import main


def test_json_is_one_document(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["host", str(tmp_path), "--json"])
    assert done.exit_code == 0
    facts = json.loads(done.stdout)
    assert list(facts["storage"]) == [str(tmp_path)]
    assert facts["cpu"]["effective"] >= 1
    assert facts["memory"]["total_bytes"] > 0


def test_without_a_path_it_is_the_current_folder() -> None:
    done = CliRunner().invoke(main, ["host", "--json"])
    assert list(json.loads(done.stdout)["storage"]) == ["."]


def test_human_form_is_plain_when_not_a_terminal(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["host", str(tmp_path), "/"])
    assert done.exit_code == 0
    assert "\x1b" not in done.stdout
    for expected in ("kernel", "effective", "fs type", str(tmp_path), "process limits"):
        assert expected in done.stdout


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_path_that_is_not_there(tmp_path: Path, arguments: list[str]) -> None:
    gone = tmp_path / "gone"
    done = CliRunner().invoke(main, ["host", str(tmp_path), str(gone), *arguments])
    assert done.exit_code == 2
    why = f"can't look at {gone}: No such file or directory"
    assert done.stderr == f"Error: {why}\n"
    if arguments:
        assert json.loads(done.stdout) == {"error": why}
    else:
        assert done.stdout == ""


@pytest.mark.parametrize(
    "name", ["[red]x[/red]", "[/]", "a\\", ":smile:", "tab\tand\x1b[31m", "blank and ü", "[bold"]
)
def test_names_are_shown_as_they_are(tmp_path: Path, name: str) -> None:
    """A folder's name must be neither markup nor a command to the terminal."""
    folder = tmp_path / name
    folder.mkdir(parents=True)  # some names hold a slash
    done = CliRunner().invoke(main, ["host", str(folder)])
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.stdout
    shown = name.replace("\t", "\\t").replace("\x1b", "\\x1b")
    assert shown in done.stdout
    as_json = CliRunner().invoke(main, ["host", str(folder), "--json"])
    assert str(folder) in json.loads(as_json.stdout)["storage"]


def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)  # noqa: PTH102
    for extra in ([], ["--json"]):
        done = subprocess.run(
            [sys.executable, "-c", "from bench.cli import main; main()", "host", folder, *extra],
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert b"caf\\udce9" in done.stdout


def test_it_does_not_wait_for_torch() -> None:
    code = (
        "import sys\nfrom bench.cli import main\n"
        "try: main(['host', '--json'])\n"
        "except SystemExit as done: assert not done.code\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)
