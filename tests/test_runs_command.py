"""`coldload runs`: what a run holds and lacks, for people and for programs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bench.commands.runs import command
from bench.record.records import RECORDS, Sample
from bench.run.budget import spent
from tests.tiny_report import HOST, PLAN, STRANGER, load, unmeasured

A, B = load("example", 1.0), load("parallel", 2.0, threads=2)


def write(
    folder: Path, *samples: Sample, plan: dict[str, Any] | None = None, tail: str = ""
) -> Path:
    """A run of two passes of A and B, with these samples."""
    folder.mkdir(parents=True)
    plan = {**PLAN, "passes": 2, "cases": [A.case, B.case], **(plan or {})}
    lines = [plan, HOST, *(sample.to_json() for sample in samples)]
    (folder / RECORDS).write_text("".join(f"{json.dumps(line)}\n" for line in lines) + tail)
    return folder


def passes(*samples: Sample) -> list[Sample]:
    return [replace(sample, pass_number=number) for number in (1, 2) for sample in samples]


def call(*args: str | Path, cwd: Path | None = None) -> Result:
    return CliRunner().invoke(command, [str(arg) for arg in args])


def document(*args: str | Path) -> tuple[dict[str, Any], int]:
    """The one JSON document on standard output, with nothing else there, and the exit code."""
    done = call(*args, "--json")
    found = json.loads(done.stdout)
    assert done.stderr == ""
    return found, done.exit_code


def test_a_complete_run_is_0(tmp_path: Path) -> None:
    done = call(write(tmp_path / "run", *passes(A, B)))
    assert done.exit_code == 0
    assert "4 planned, 4 ok, 0 skipped, 0 failed, 0 missing" in done.stdout


def test_what_was_skipped_with_a_reason_is_not_missing(tmp_path: Path) -> None:
    skipped = unmeasured("parallel", "skipped", "needs x", threads=2)
    done = call(write(tmp_path / "run", *passes(A, skipped)))
    assert done.exit_code == 0
    assert "2 ok, 2 skipped" in done.stdout


def test_what_the_budget_left_out_is_not_complete(tmp_path: Path) -> None:
    late = replace(unmeasured("parallel", "skipped", spent(180.0), threads=2), pass_number=2)
    run = write(tmp_path / "run", *passes(A), B, late)
    done = call(run)
    assert done.exit_code == 1
    assert "3 ok, 1 skipped (1 for want of time), 0 failed, 0 missing" in done.stdout
    assert f"not reached within the budget: {B.case}, pass 2\n" in done.stdout
    found, code = document(run)
    assert code == 1
    assert found["runs"][0]["unreached"] == {B.case: [2]}
    assert found["runs"][0]["complete"] is False


def test_what_is_missing_is_named_with_its_passes_and_is_1(tmp_path: Path) -> None:
    done = call(write(tmp_path / "run", A))
    assert done.exit_code == 1
    assert "1 ok, 0 skipped, 0 failed, 3 missing" in done.stdout
    assert f"missing: {A.case}, pass 2\n" in done.stdout
    assert f"missing: {B.case}, pass 1, 2\n" in done.stdout


def test_what_failed_is_named_with_its_reason_and_is_1(tmp_path: Path) -> None:
    broken = unmeasured("parallel", "failed", "the child ended by SIGBUS", threads=2)
    done = call(write(tmp_path / "run", *passes(A, broken)))
    assert done.exit_code == 1
    assert f"failed: {B.case}, pass 1: the child ended by SIGBUS" in done.stdout


def test_a_sample_that_was_taken_again_is_no_failure(tmp_path: Path) -> None:
    late = replace(A, status="failed", reason="the clocks disagree")
    found, code = document(write(tmp_path / "run", late, *passes(A, B)))
    assert code == 0
    assert (found["runs"][0]["discarded"], found["runs"][0]["failed"]) == (1, [])


def test_a_line_that_was_cut_off_is_told_and_what_stands_before_it_counts(tmp_path: Path) -> None:
    run = write(tmp_path / "run", *passes(A, B), tail='{"kind": "sample", "sch')
    done = call(run)
    assert done.exit_code == 0
    assert "last line cut off" in done.stdout
    assert document(run)[0]["runs"][0]["cut"] is True


def test_a_run_that_ended_before_its_plan_is_1(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / RECORDS).write_text("")
    done = call(run)
    assert done.exit_code == 1
    assert "no plan" in done.stdout
    found, code = document(run)
    assert (found["runs"][0]["planned"], found["runs"][0]["complete"], code) == (None, False, 1)


def test_the_json_tells_all(tmp_path: Path) -> None:
    broken = unmeasured("parallel", "failed", "it broke", threads=2)
    found, code = document(write(tmp_path / "run", A, broken, plan={"smoke": True}))
    assert code == 1
    assert found == {
        "runs": [
            {
                "path": str(tmp_path / "run" / RECORDS),
                "started": PLAN["started"],
                "model": "made-up",
                "size": PLAN["size"],
                "smoke": True,
                "planned": 4,
                "ok": 1,
                "skipped": 0,
                "failed": [{"case": B.case, "pass": 1, "reason": "it broke"}],
                "discarded": 0,
                "missing": {A.case: [2], B.case: [2]},
                "unreached": {},
                "cut": False,
                "complete": False,
            }
        ]
    }


def test_a_folder_of_runs_lists_each_in_order(tmp_path: Path) -> None:
    write(tmp_path / "2026-01-02", A)
    write(tmp_path / "2026-01-01", *passes(A, B))
    (tmp_path / "no-run").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    done = call(tmp_path)
    assert done.exit_code == 1
    first, second = done.stdout.splitlines()
    assert "2026-01-01" in first
    assert "0 missing" in first
    assert "2026-01-02" in second
    assert "3 missing" in second


def test_the_file_itself_may_be_named(tmp_path: Path) -> None:
    assert call(write(tmp_path / "run", *passes(A, B)) / RECORDS).exit_code == 0


def test_without_an_argument_the_runs_of_this_folder_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "runs" / "one", *passes(A, B))
    monkeypatch.chdir(tmp_path)
    done = call()
    assert done.exit_code == 0
    assert "runs/one" in done.stdout


@pytest.mark.parametrize("what", ["absent", "empty"])
def test_no_run_there_is_3(tmp_path: Path, what: str) -> None:
    (tmp_path / "empty").mkdir()
    done = call(tmp_path / what)
    assert done.exit_code == 3
    assert done.stdout == ""
    assert "no run there; pytest --benchmark-only makes one" in done.stderr
    found, code = document(tmp_path / what)
    assert code == 3
    assert found["runs"] == []
    assert "no run there" in found["error"]


def test_a_path_that_can_not_be_looked_at_is_2(tmp_path: Path) -> None:
    done = call(tmp_path / ("x" * 300))
    assert done.exit_code == 2
    assert "ame too long" in done.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("not json", "not a coldload record"),
        ("[1]", "not a coldload record"),
        ('{"kind": "sample", "schema": 1}', "not a coldload record"),
        ('{"kind": "plan"}', "not a coldload record"),
        ('{"kind": "plan", "schema": 99}', "newer than this version's"),
        ("\x00\x00\x00", "not a coldload record"),
    ],
)
def test_what_can_not_be_read_is_2_with_file_and_line(tmp_path: Path, line: str, said: str) -> None:
    run = write(tmp_path / "run", A)
    path = run / RECORDS
    path.write_text(f"{path.read_text()}{line}\n{json.dumps(B.to_json())}\n")
    done = call(run)
    assert done.exit_code == 2
    assert f"{path}:4: " in done.stderr
    assert said in done.stderr
    assert done.stdout == ""
    found, code = document(run)
    assert code == 2
    assert said in found["error"]


def test_one_unreadable_run_does_not_hide_the_others(tmp_path: Path) -> None:
    write(tmp_path / "a", *passes(A, B))
    write(tmp_path / "b", A, tail="junk\n")
    write(tmp_path / "c", A)
    done = call(tmp_path)
    assert done.exit_code == 2
    assert "0 missing" in done.stdout
    assert "3 missing" in done.stdout
    assert "not a coldload record" in done.stderr


def test_names_from_strangers_are_harmless(tmp_path: Path) -> None:
    odd = load(STRANGER, 1.0)
    broken = unmeasured(STRANGER, "failed", "[bold]\x1b[2J\nreason")
    plan = {"cases": [odd.case, A.case], "model": STRANGER}
    done = call(write(tmp_path / "run", broken, plan=plan))
    assert done.exit_code == 1
    assert "\x1b" not in done.stdout
    assert len(done.stdout.splitlines()) == 1 + 2 + 1
    assert r"[bold]\x1b[2J\nreason" in done.stdout


def test_records_of_a_newer_version_with_more_keys_are_read(tmp_path: Path) -> None:
    run = write(tmp_path / "run", *passes(A, B))
    lines = [json.loads(line) for line in (run / RECORDS).read_text().splitlines()]
    for line in lines:
        line["of_tomorrow"] = 1
    lines.append({"kind": "remark", "schema": 1, "text": "of tomorrow"})
    (run / RECORDS).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert call(run).exit_code == 0
