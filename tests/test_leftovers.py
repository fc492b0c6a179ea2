"""What a killed process left half written goes with the next one; nothing else does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny_bench import wait_until
from tiny_runs import ROOT, environment

from bench.ground import leftovers
from bench.ground.leftovers import DATA, MADE, held, partial_of, remove_leftovers
from bench.synth.write import make_checkpoint


def dead_pid() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def left(folder: Path, name: str, pid: int, *files: str) -> Path:
    path = folder / f".{name}.incomplete-{pid}"
    (path / "deep").mkdir(parents=True)
    for file in files:
        (path / file).write_bytes(b"x")
    return path


@pytest.fixture
def dead() -> int:
    return dead_pid()


def test_what_a_dead_process_left_goes(tmp_path: Path, dead: int) -> None:
    data = tmp_path / DATA
    found = [
        left(tmp_path, "model", dead),
        left(tmp_path, "other", dead, MADE),
        left(data, "x-0123", dead, "model.safetensors"),
        left(data / "llama-1GiB", "safetensors", dead),
    ]
    assert remove_leftovers(tmp_path, "model") == [found[0], found[1]]
    assert remove_leftovers(data) == [found[2]]
    assert remove_leftovers(data / "llama-1GiB") == [found[3]]
    assert not any(path.exists() for path in found)


def test_what_may_be_anothers_stays(tmp_path: Path, dead: int) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / f".link.incomplete-{dead}").symlink_to(tmp_path / "real")
    (tmp_path / f".file.incomplete-{dead}").write_bytes(b"x")
    for name in ("stranger", "model"):  # neither the name nor what is in it is ours
        left(tmp_path, name, dead, "config.json")
    left(tmp_path, "alive", os.getppid(), MADE)
    left(tmp_path, "mine", os.getpid(), MADE)
    for name in (".x.incomplete-", ".x.incomplete-abc", f"x.incomplete-{dead}", ".x.incomplete"):
        (tmp_path / name).mkdir()
        (tmp_path / name / MADE).write_bytes(b"")
    before = sorted(tmp_path.rglob("*"))
    assert remove_leftovers(tmp_path) == []
    assert remove_leftovers(tmp_path, "another") == []
    assert remove_leftovers(tmp_path / "none") == []
    assert sorted(tmp_path.rglob("*")) == before


def test_what_another_container_is_writing_stays(tmp_path: Path, dead: int) -> None:
    """Its process has another number here, or none; its lock is there all the same."""
    path = left(tmp_path, "model", dead)
    with held(path):
        assert remove_leftovers(tmp_path, "model") == []
    assert remove_leftovers(tmp_path, "model") == [path]


def test_what_another_host_may_be_writing_stays_for_a_day(
    tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "mount_of", lambda path: SimpleNamespace(fs_type="nfs4"))
    path = left(tmp_path, "model", dead, "weights")
    assert remove_leftovers(tmp_path, "model") == []
    for one in (path / "weights", path / "deep", path):
        os.utime(one, (0, time.time() - leftovers.DAY - 5))
    os.utime(path / "weights")
    assert remove_leftovers(tmp_path, "model") == []
    os.utime(path / "weights", (0, 0))
    assert remove_leftovers(tmp_path, "model") == [path]


def test_a_thread_of_this_process_is_no_leftover(tmp_path: Path) -> None:
    partial = partial_of(tmp_path / "model")
    partial.mkdir()
    seen: list[list[Path]] = []
    with held(partial):
        thread = threading.Thread(target=lambda: seen.append(remove_leftovers(tmp_path, "model")))
        thread.start()
        thread.join()
    assert seen == [[]]


def test_a_killed_make_leaves_nothing_for_long(tmp_path: Path) -> None:
    start = "import sys; from bench.cli import main; main(sys.argv[1:])"
    args = ["make", "llama-3.1-8b", str(tmp_path / "made"), "--size", "4GiB"]
    process = subprocess.Popen(
        [sys.executable, "-c", start, *args], cwd=ROOT, env=environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert wait_until(lambda: bool(list(tmp_path.glob(".made.incomplete-*/*.safetensors"))))
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert [path.name for path in tmp_path.iterdir()] == [f".made.incomplete-{process.pid}"]
    make_checkpoint(
        "llama-3.1-8b", tmp_path / "next", size=2 << 20, shards=1, format="safetensors",
        dtype=None, seed=0, progress=lambda done, total: None,
    )  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["next"]
