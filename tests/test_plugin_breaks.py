"""Runs that are stopped, killed or refused: nothing is lost, nothing stays, one clear word."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.record.records import read_run
from tests.test_plugin_runs import make_model
from tests.tiny_runs import (
    PYTEST,
    ROOT,
    Done,
    command,
    environment,
    private_mount,
    processes_of,
    records,
    run_coldload,
    samples,
    tries,
    wait_for,
)

SMOKE = ["bench", "--benchmark-disable"]
LOADERS = ["--loader=example", "--loader=safetensors-mmap"]
TRACE = "Traceback (most recent call last)"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "tiny-model", "safetensors")


@contextmanager
def running(model: Path, run: Path, lines: int) -> Iterator[subprocess.Popen[str]]:
    """A run that has written that many lines and goes on."""
    process = subprocess.Popen(
        [*PYTEST, *SMOKE, *LOADERS, f"--model={model}", f"--run-dir={run}"],
        cwd=ROOT,
        env=environment(TMPDIR=str(run.parent)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        path = run / "records.jsonl"
        assert wait_for(
            lambda: path.exists() and path.read_bytes().count(b"\n") >= lines, seconds=90
        )
        assert process.poll() is None
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module", params=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def interrupted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, model: Path
) -> tuple[Done, Path, int]:
    """By Ctrl-C, by a scheduler that ends the job, by a terminal that is closed."""
    run = tmp_path_factory.mktemp("interrupted") / "run"
    with running(model, run, lines=6) as process:
        process.send_signal(request.param)
        text, _ = process.communicate(timeout=60)
    return Done(code=process.returncode, text=text), run, process.pid


def test_ctrl_c_ends_the_run_as_pytest_does(interrupted: tuple[Done, Path, int]) -> None:
    done, _, _ = interrupted
    assert done.code == pytest.ExitCode.INTERRUPTED
    assert "KeyboardInterrupt" in done.text
    assert TRACE not in done.text


def test_ctrl_c_shows_the_table_of_what_was_measured(interrupted: tuple[Done, Path, int]) -> None:
    done, run, _ = interrupted
    assert "(smoke: these figures mean nothing)" in done.text
    assert f"Records: {run}/records.jsonl" in done.text


def test_ctrl_c_loses_the_case_in_flight_and_nothing_before_it(
    interrupted: tuple[Done, Path, int],
) -> None:
    _, run, _ = interrupted
    found = read_run(run)
    assert not found.cut
    assert len(found.samples) >= 4
    assert found.missing()
    assert run_coldload("runs", run).code == 1


def test_ctrl_c_leaves_no_process_and_no_temporary_file(
    interrupted: tuple[Done, Path, int],
) -> None:
    _, run, pid = interrupted
    assert wait_for(lambda: not processes_of(pid))
    assert [path.name for path in run.parent.iterdir()] == ["run"]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, model: Path) -> tuple[Path, int, int]:
    run = tmp_path_factory.mktemp("killed") / "run"
    with running(model, run, lines=6) as process:
        before = len(processes_of(process.pid))
        process.kill()
        process.wait()
    return run, process.pid, before


def test_sigkill_leaves_every_finished_case_readable(killed: tuple[Path, int, int]) -> None:
    found = read_run(killed[0])
    assert found.plan is not None
    assert found.host is not None
    assert len(found.samples) >= 4
    assert len(found.settled()) >= 3


def test_sigkill_leaves_no_child_behind(killed: tuple[Path, int, int]) -> None:
    _, pid, before = killed
    assert before >= 1
    assert wait_for(lambda: not processes_of(pid))


def test_coldload_runs_says_what_a_killed_run_lacks(killed: tuple[Path, int, int]) -> None:
    run = killed[0]
    plan = records(run)[0]["cases"]
    there = {sample["case"] for sample in samples(run)}
    done = run_coldload("runs", run)
    assert done.code == 1
    assert f"{len(plan) - len(there)} missing" in done.text
    for case in plan:
        assert (f"missing: {case}, pass 1" in done.text) == (case not in there)


# What can't be measured is said once, before anything is timed.


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory, model: Path) -> dict[str, Done]:
    place = tmp_path_factory.mktemp("refusals")
    run = place / "run"
    truncated = place / "truncated"
    shutil.copytree(model, truncated)
    shard = min(truncated.glob("*.safetensors"))
    os.truncate(shard, shard.stat().st_size - 100)
    (place / "empty").mkdir()
    ordinary = ["--benchmark-only", *LOADERS, f"--run-dir={run}"]
    asked = {
        "truncated": [f"--model={truncated}"],
        "empty": [f"--model={place / 'empty'}"],
        "missing": [f"--model={place / 'missing'}"],
        "hub": ["--model=some-org/some-model"],
        "misspelt": ["--model=lama-3.1-8b"],
        "too small": ["--size=10", f"--storage={place}"],
        "not writable": ["--storage=/proc"],
        "run folder": [f"--model={model}", "--run-dir=/proc/run"],
    }
    env = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(place / "hf"), "TMPDIR": str(place)}
    done = tries([[*ordinary, *each] for each in asked.values()], env)
    assert not run.exists()  # nothing that looks like a run
    assert {path.name for path in place.iterdir()} <= {"truncated", "empty", "hf", ".coldload"}
    return dict(zip(asked, done, strict=True))


SAID = {
    "truncated": "the file is cut short: its header promises",
    "empty": "no weights in this folder",
    "missing": "missing: no such file or folder",
    "hub": "HF_HUB_OFFLINE is set, so it isn't downloaded",
    "misspelt": "did you mean llama-3.1-8b",
    "too small": "can't be smaller than",
    "not writable": "/proc/.coldload: test data can't be put there",
    "run folder": "name another folder for the records with --run-dir=",
}


@pytest.mark.parametrize("what", SAID)
def test_what_can_not_be_measured_is_said_once(refusals: dict[str, Done], what: str) -> None:
    done = refusals[what]
    assert done.text.count(SAID[what]) == 1
    assert done.text.count("\ncoldload: ") == 1
    assert TRACE not in done.text
    assert "Error" not in done.text.replace("LocalEntryNotFoundError", "")
    assert " passed" not in done.text


def test_a_faulty_checkpoint_is_a_failure_and_the_rest_wrong_usage(
    refusals: dict[str, Done],
) -> None:
    for what, done in refusals.items():
        assert done.code == (1 if what == "truncated" else pytest.ExitCode.USAGE_ERROR), what


def needs_mount(script: str) -> list[str]:
    found = private_mount(script)
    if found is None:
        pytest.skip("needs root, to mount where nobody else sees it")
    return found


def test_too_little_space_is_said_with_both_figures(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    mounted = needs_mount(f"mount -t tmpfs -o size=40m coldload-test {place}")
    done = command([*mounted, *PYTEST, "--benchmark-only", "--size=64MiB", f"--storage={place}"])
    assert done.code == pytest.ExitCode.USAGE_ERROR, done.text
    assert "64.00 MiB of test data needed, 40.00 MiB free" in done.text
    assert "--size" in done.text
    assert TRACE not in done.text


def test_a_read_only_storage_with_a_model_on_it_is_measured(model: Path, tmp_path: Path) -> None:
    place = tmp_path / "read-only"
    place.mkdir()
    script = f"mount --bind {model.parent} {place}\nmount -o remount,ro,bind {place}"
    run = tmp_path / "run"
    asked = [*SMOKE, *LOADERS, f"--model={place / model.name}", f"--storage=ro:{place}"]
    done = command([*needs_mount(script), *PYTEST, *asked, f"--run-dir={run}"])
    assert done.code == 0, done.text
    cold = [s for s in samples(run) if s["cache"]["requested"] == "cold" and s["loader"] != "fio"]
    assert cold
    assert {sample["storage"]["label"] for sample in cold} == {"ro"}
    assert all(sample["cache"]["state"] != "warm" for sample in cold)


def test_a_full_disk_for_the_records_stops_the_run_and_loses_nothing(
    model: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    kept = tmp_path / "kept"
    script = f"mount -t tmpfs -o size=36k coldload-test {run}"
    asked = [*SMOKE, *LOADERS, f"--model={model}", f"--run-dir={run}", "--threads=1,2"]
    shell = ["sh", "-c", f'"$@"; code=$?; cp {run}/records.jsonl {kept}; exit $code', "sh"]
    done = command([*needs_mount(script), *shell, *PYTEST, *asked])
    assert done.code == 1, done.text
    assert done.text.count("\ncoldload: ") == 1
    assert "No space left on device" in done.text or "fitted" in done.text
    assert TRACE not in done.text
    found = read_run(kept)
    assert not found.cut
    assert found.samples
    assert found.missing()


def test_another_user_can_measure(tmp_path: Path) -> None:
    """Whoever isn't root: no drop_caches, no residency of other people's files."""
    nobody = 65534
    probe = [sys.executable, "-c", "import bench.plugin"]
    try:
        able = subprocess.run(
            probe, user=nobody, group=nobody, extra_groups=[], cwd=ROOT, check=False
        )
    except PermissionError:
        pytest.skip("needs root, and an interpreter that other users may run")
    if able.returncode:
        pytest.skip("other users can't read this tree")
    tmp_path.chmod(0o777)
    for above in tmp_path.parents:
        if above.stat().st_uid == os.getuid() and above != Path("/"):
            above.chmod(above.stat().st_mode | 0o011)
    done = subprocess.run(
        [*PYTEST, *SMOKE, *LOADERS, f"--storage={tmp_path}", f"--run-dir={tmp_path / 'run'}"],
        cwd=ROOT,
        env=environment(HOME=str(tmp_path), PYTHONDONTWRITEBYTECODE="1"),
        user=nobody,
        group=nobody,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
