"""`coldload plan-run`: a dry run in words and as JSON, with exit codes as of other commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tiny_runs import run_coldload


def test_in_words_without_what_pytest_says_of_itself(tmp_path: Path) -> None:
    storage = f"--storage=here:{tmp_path}"
    done = run_coldload("plan-run", "--size=16MiB", storage, "--loader=example", "--cache=cold")
    assert done.code == 0, done.text
    assert done.text.startswith("This run would measure, and nothing has been measured or made yet")
    assert "collected" not in done.text
    assert "example" not in done.text
    assert "on here, kept in .coldload" in done.text
    assert list(tmp_path.iterdir()) == []
    every = run_coldload("plan-run", "--cases", "--size=16MiB", storage, "--loader=example")
    assert f"example{' ' * 38}here ({tmp_path}), cold" in every.text


def test_as_json(tmp_path: Path) -> None:
    done = run_coldload(
        *("plan-run", "--json", "--size=16MiB", f"--storage=here:{tmp_path}"),
        *("--loader=example", "--cache=cold", "--passes=2"),
    )
    assert done.code == 0, done.text
    found = json.loads(done.text)
    assert (found["model"], found["passes"]) == ("llama-3.1-8b", 2)
    assert found["size"] == 16 << 20
    assert found["written"]["here"] > 0
    loaders = [one["loader"] for one in found["cases"] if one["phase"] == "disk_to_host"]
    assert loaders.count("example") == len(loaders) > 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--storage=/none/such"], "/none/such: expected a folder, found nothing there"),
        (["--no-such-option"], "unrecognized arguments: --no-such-option"),
        (["--model=/none/such"], "/none/such"),
    ],
)
def test_what_can_not_be_planned(args: list[str], said: str) -> None:
    done = run_coldload("plan-run", *args)
    assert done.code == 2
    assert said in done.text
    assert "Traceback" not in done.text
    again = run_coldload("plan-run", "--json", *args)
    assert again.code == 2
    assert said in json.loads(again.text)["error"]
