"""Staging: whole or absent, the same bytes, room looked at first; and when it pays."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from servers import misbehaving
from tiny import write_sharded
from tiny_remote import no_proxies  # noqa: F401 - a fixture

from bench.ground import staging
from bench.ground.remote_reference import read_remote_reference
from bench.ground.staging import StagingError, break_even_loads, stage
from bench.measuring.verify import read_reference
from bench.run.limits import LimitError
from loaders.checkpoint.read import open_checkpoint
from loaders.store.errors import StoreError

pytestmark = pytest.mark.usefixtures("no_proxies")

TWO = [{"a": ("F32", [400]), "b": ("BF16", [3, 2])}, {"c": ("I8", [5])}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_sharded(tmp_path / "m", TWO)
    (tmp_path / "m/config.json").write_text('{"model_type": "tiny"}')
    return tmp_path / "m"


def served(folder: Path) -> dict[str, bytes]:
    return {f"m/{path.name}": path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("where", ["folder", "address", "file"])
def test_the_same_bytes_arrive(
    folder: Path, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "CHUNK", os.sysconf("SC_PAGESIZE"))
    told: list[tuple[int, int]] = []
    with misbehaving(served(folder), fail=0) as server:
        places = {"folder": str(folder), "address": f"{server.address}/m"}
        checkpoint = open_checkpoint(places.get(where, f"file://{folder}"))
        result = stage(
            checkpoint,
            tmp_path / "staged",
            threads=3,
            progress=lambda done, total: told.append((done, total)),
        )
    assert result.nbytes == checkpoint.file_bytes
    assert result.seconds > 0
    assert told[-1] == (checkpoint.file_bytes, checkpoint.file_bytes)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert ("requests" in result.counts) == (where != "folder")
    for file in checkpoint.files:
        assert (result.path / file.name).read_bytes() == (folder / file.name).read_bytes()
    again = open_checkpoint(result.path)
    assert again.tensors == checkpoint.tensors
    assert again.config == checkpoint.config
    assert not again.problems


def left(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.iterdir() if "staged" in path.name)


def test_a_store_that_fails_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    with misbehaving(served(folder)) as server:
        checkpoint = open_checkpoint(f"{server.address}/m")
        server.behaviour.fail, server.behaviour.status = 10**6, 404
        with pytest.raises(StoreError, match="no such file"):
            stage(checkpoint, tmp_path / "staged", threads=4)
    assert left(tmp_path) == []


def test_a_file_that_shrank_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(folder)
    path = Path(checkpoint.files[0].path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Exception, match="cut off"):
        stage(checkpoint, tmp_path / "staged")
    assert left(tmp_path) == []


def test_an_interrupt_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stage(open_checkpoint(folder), tmp_path / "staged", progress=interrupted)
    assert left(tmp_path) == []


def test_what_is_there_is_left_alone(folder: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(folder)
    stage(checkpoint, tmp_path / "staged")
    with pytest.raises(StagingError, match="is there already"):
        stage(checkpoint, tmp_path / "staged")
    with pytest.raises(StagingError, match="existing folder"):
        stage(checkpoint, tmp_path / "none/staged")
    assert left(tmp_path) == ["staged"]


@pytest.mark.parametrize(("kind", "error"), [("tmpfs", LimitError), ("ext4", StagingError)])
def test_room_is_looked_at_before_a_byte_is_read(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    error: type[Exception],
) -> None:
    monkeypatch.setattr(staging, "mount_of", lambda path: SimpleNamespace(fs_type=kind))
    checkpoint = open_checkpoint(folder)
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    with pytest.raises(error, match="needed"):
        staging.room(tmp_path, free * 2)
    staging.room(tmp_path, checkpoint.file_bytes)
    assert left(tmp_path) == []


def test_shared_memory_is_a_place(folder: Path) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or not os.access(shared, os.W_OK):
        pytest.skip("no /dev/shm here")
    dest = shared / f"coldload-test-{os.getpid()}"
    try:
        result = stage(open_checkpoint(folder), dest)
        assert open_checkpoint(dest).tensors
        assert result.path == dest
    finally:
        for path in dest.glob("*"):
            path.unlink()
        dest.rmdir()


def test_break_even() -> None:
    assert break_even_loads(10.0, 6.0, 1.0) == 3  # 13 against 18; with two 12 against 12
    assert break_even_loads(0.5, 6.0, 1.0) == 1
    assert break_even_loads(10.0, 1.0, 1.0) is None
    assert break_even_loads(10.0, 1.0, 2.0) is None


@given(st.integers(0, 10**6).map(float), st.integers(1, 10**4).map(float), st.integers(1, 10**4))
def test_break_even_is_the_first_that_pays(copying: float, direct: float, part: int) -> None:
    staged = direct * part / 10**4 / 2
    count = break_even_loads(copying, direct, staged)
    assert count is not None
    slack = 1e-9 * (copying + count * direct)
    assert copying + count * staged < count * direct + slack
    assert count == 1 or copying + (count - 1) * staged >= (count - 1) * direct - slack


def test_the_reference_over_the_network_is_the_one_of_the_files(folder: Path) -> None:
    local = read_reference(open_checkpoint(folder))
    with misbehaving(served(folder)) as server:
        checkpoint = open_checkpoint(f"{server.address}/m")
        told: list[tuple[int, int]] = []
        remote = read_remote_reference(
            checkpoint, threads=3, progress=lambda done, total: told.append((done, total))
        )
        assert told[-1] == (checkpoint.tensor_bytes, checkpoint.tensor_bytes)
        assert told == sorted(told)
        assert (remote.digests, remote.sums) == (local.digests, local.sums)
        server.behaviour.fail, server.behaviour.status = 10**6, 404
        with pytest.raises(StoreError, match="no such file"):
            read_remote_reference(checkpoint)
