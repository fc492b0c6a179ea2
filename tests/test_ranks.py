"""Real ranks, started by torchrun. Few starts: each rank imports torch, two seconds of a core."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.ground.storages import Storage, name_storages
from bench.ranks import course as courses
from bench.ranks.course import Course, run
from bench.ranks.job import WAYS, Job, expected_digests
from bench.ranks.measure import load, prove
from bench.ranks.team import Nodes, RankError, Team
from bench.record.records import Writer, read_run
from loaders.checkpoint.manifest import Checkpoint
from tests.tiny_ranks import paths_of, tiny_model

PATIENCE = 120.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return tiny_model(tmp_path_factory.mktemp("ranks") / "model")


def job_of(checkpoint: Checkpoint, world: int, timeout: float = PATIENCE) -> Job:
    return Job(
        checkpoint=checkpoint, world=world, ep=False, kind="cpu", threads=2, touch_bytes=1 << 20,
        timeout=timeout,
    )  # fmt: skip


def ranks_of(parent: int) -> list[psutil.Process]:
    return [
        one
        for one in psutil.Process(parent).children(recursive=True)
        if "bench.ranks.worker" in (words := one.cmdline()) and "bench.ranks.start" not in words
    ]


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=15)
    return not alive


def nothing() -> None:
    return None


def test_eight_ranks_go_every_way_and_a_stopped_one_is_named(model: Checkpoint) -> None:
    job = job_of(model, 8, timeout=4.0)
    expected = expected_digests(model, job.parameters(range(8)))
    with Team(job, Nodes(nproc=8)) as team:
        processes = [psutil.Process(one.who.pid) for one in team.members.values()]
        assert team.collective == "gloo"
        for way in WAYS:
            seen = load(team, job, way, charged=True, go=nothing)
            assert prove(team, job, lambda: expected) == []
            assert [one["rank"] for one in seen.ranks] == list(range(8))
            assert sum(one["bytes"] for one in seen.ranks) > model.tensor_bytes
            times = seen.details(team, job)
            assert 0 < times["first_done"] <= times["last_done"]
            for one in seen.ranks:
                parts = ("open", "allocate", "read", "exchange", "transfer")
                assert sum(one[name] for name in parts) == pytest.approx(one["total"])
                assert one["done_at"] == pytest.approx(one["started_at"] + one["total"])
            asked = [one["asked"] for one in seen.ranks]
            if way == "scatter":
                assert sum(asked) == model.tensor_bytes
                assert max(asked) - min(asked) <= 1
            elif way == "read-slices":
                assert all(asked)
            else:
                assert asked == [None] * 8

        wrong = [dict(one) for one in expected]
        wrong[5]["model.norm.weight"] = "0"
        load(team, job, "read-all", charged=True, go=nothing)
        faults = prove(team, job, lambda: wrong)
        assert faults == ["rank 5: model.norm.weight: wrong bytes"]

        stopped = team.members[3].who.pid
        with pytest.raises(RankError) as caught:
            load(team, job, "scatter", charged=True, go=lambda: os.kill(stopped, signal.SIGSTOP))
        text = str(caught.value)
        assert text.startswith(f"no end within 4 s: rank 3 ({socket.gethostname()}, pid {stopped})")
        assert "stopped by a signal; 7 ranks waited for it; 0 of 8 ranks were done" in text
    assert gone(processes)


def storage_of(checkpoint: Checkpoint) -> Storage:
    (storage,) = name_storages((), Path(checkpoint.root))
    assert isinstance(storage, Storage)
    storage.examine(paths_of(checkpoint)[0])
    return storage


def test_a_rank_that_dies_costs_its_case_alone(
    model: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    pids: list[int] = []

    def killing(team: Team, job: Job, way: Any, *, charged: bool, go: Callable[[], None]) -> Any:
        tried.append(way)
        victim = team.members[1].who.pid
        pids.extend(team.members[rank].who.pid for rank in sorted(team.members))

        def also() -> None:
            go()
            if len(tried) == 2:
                os.kill(victim, signal.SIGKILL)

        return load(team, job, way, charged=charged, go=also)

    monkeypatch.setattr(courses, "load", killing)
    course = Course(
        job=job_of(model, 2), nodes=Nodes(nproc=2), storage=storage_of(model), model="tiny",
        ways=["read-all", "read-slices", "scatter"], passes=1, seed=1, log=tmp_path / "ranks.log",
    )  # fmt: skip
    writer = Writer(tmp_path / "run")
    run(course, writer)
    writer.close()
    found = read_run(tmp_path / "run")
    assert [sample.status for sample in found.samples] == ["ok", "failed", "ok"]
    assert [sample.loader for sample in found.samples] == tried
    assert not found.missing()
    failed = found.samples[1]
    assert failed.reason is not None
    assert failed.reason.startswith(f"rank 1 ({socket.gethostname()}, pid {pids[1]}) ended by SIG")
    assert "SIGKILL" in failed.reason
    assert "ChildFailedError" in (tmp_path / "ranks.log").read_text()
    assert len(set(pids)) == 4, "the ranks were started anew after the death, and only then"
    assert not any(map(psutil.pid_exists, set(pids)))
    for sample in (found.samples[0], found.samples[2]):
        assert sample.verified is True
        assert sample.cache.state in {"cold", "unverified", "mixed"}
        assert sample.details["world"] == 2
        assert sample.bytes == sum(one["bytes"] for one in sample.details["ranks"])


def command(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "from bench.cli import main; main()", "ranks", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
    )  # fmt: skip


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_two_nodes_on_loopback_and_their_runs_merged(model: Checkpoint, tmp_path: Path) -> None:
    common = (
        model.root, "--nproc=1", "--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{free_port()}",
        "--passes=1", "--way=read-all", "--way=scatter", "--json",
    )  # fmt: skip
    nodes = [
        command(*common, f"--node-rank={n}", f"--run-dir={tmp_path / f'n{n}'}", cwd=tmp_path)
        for n in range(2)
    ]
    for number, node in enumerate(nodes):
        said, errors = node.communicate(timeout=PATIENCE)
        assert node.returncode == 0, said + errors
        document = json.loads(said)
        assert document["ok"] is True
        assert {row["way"] for row in document["ways"]} == {"read-all", "scatter"}
        assert all(row["by_rank"][0]["rank"] == number for row in document["ways"])
    merging = command(
        "--merge", str(tmp_path / "n0"), str(tmp_path / "n1"), "-o", str(tmp_path / "both"),
        cwd=tmp_path,
    )  # fmt: skip
    said, errors = merging.communicate(timeout=PATIENCE)
    assert merging.returncode == 0, said + errors
    both = read_run(tmp_path / "both")
    assert [sample.status for sample in both.samples] == ["ok", "ok"]
    for sample in both.samples:
        assert [one["rank"] for one in sample.details["ranks"]] == [0, 1]
        assert sample.details["nodes"] == 2
        assert sample.verified is True


def test_ctrl_c_leaves_no_rank(model: Checkpoint, tmp_path: Path) -> None:
    runner = command(model.root, "--nproc=2", f"--run-dir={tmp_path / 'run'}", cwd=tmp_path)
    deadline = time.monotonic() + PATIENCE
    while len(ranks := ranks_of(runner.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    everyone = psutil.Process(runner.pid).children(recursive=True)
    assert len(ranks) == 2
    runner.send_signal(signal.SIGINT)
    said, errors = runner.communicate(timeout=PATIENCE)
    assert runner.returncode == 130, said + errors
    assert "no rank is left" in errors
    assert gone(everyone)


def test_a_killed_runner_leaves_no_rank(model: Checkpoint, tmp_path: Path) -> None:
    runner = command(model.root, "--nproc=1", f"--run-dir={tmp_path / 'run'}", cwd=tmp_path)
    deadline = time.monotonic() + PATIENCE
    while not ranks_of(runner.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    address = Path(next(one for one in ranks_of(runner.pid)[0].cmdline() if "/socket" in one))
    time.sleep(0.3)  # until the rank has asked the kernel to end with torchrun
    everyone = psutil.Process(runner.pid).children(recursive=True)
    assert len(everyone) >= 2
    runner.kill()
    runner.communicate(timeout=PATIENCE)
    shutil.rmtree(address.parent)  # nobody is left who could
    assert gone(everyone)
