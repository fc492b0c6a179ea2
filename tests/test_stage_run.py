"""--stage in a run: the copy is timed, loads from it are a storage, nothing of it stays."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.ground import staging
from bench.ground.staging import StagingError, remove_new, room, there_before
from bench.ground.storages import Storage, name_storages, staged_place
from bench.phases.stage import stage_cases
from bench.settings import SettingsError, StorageChoice
from tests.tiny_bench import make_tiny
from tests.tiny_runs import Done, run_pytest, samples, tries

RUN = ["--benchmark-only", "--passes=1", "--loader=parallel", "--budget=60s"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stage")


@pytest.fixture(scope="module")
def taken(place: Path) -> tuple[Done, Path]:
    """A real model, staged to a folder that holds something already."""
    make_tiny(place / "model", size=4 << 20)
    (place / "to" / ".coldload" / "kept").mkdir(parents=True)
    done = run_pytest(
        "bench", "--benchmark-disable", "--loader=parallel", f"--model={place / 'model'}",
        f"--stage={place / 'to'}", f"--run-dir={place / 'run'}",
        "-k", "bench_stage or disk_to_host",
    )  # fmt: skip
    return done, place / "run"


def test_the_copy_is_a_sample_and_the_staged_copy_a_storage(taken: tuple[Done, Path]) -> None:
    done, run = taken
    assert done.code == 0, done.text
    found = samples(run)
    (copy,) = [one for one in found if one["phase"] == "stage"]
    assert (copy["status"], copy["verified"], copy["loader"]) == ("ok", True, "copy")
    assert copy["bytes"] > 3 << 20
    assert copy["details"]["file_bytes"] > copy["bytes"]
    label = copy["options"]["to"]
    assert label.startswith("staged-")
    labels = {one["storage"]["label"] for one in found if one["phase"] == "disk_to_host"}
    assert labels == {label, copy["storage"]["label"]}
    assert all(one["verified"] for one in found if one["status"] == "ok")
    text = " ".join(done.text.split())
    assert f"staging to {label} takes" in text
    assert str(run.parent / "to") not in copy["case"]


def test_nothing_of_the_copy_stays_and_what_was_there_does(taken: tuple[Done, Path]) -> None:
    _, run = taken
    there = [path.name for path in (run.parent / "to").rglob("*")]
    assert sorted(there) == [".coldload", "kept"]


def test_without_stage_there_is_no_such_case(place: Path) -> None:
    done = run_pytest("--benchmark-only", "--collect-only", "-q")
    assert "bench_stage" not in done.text
    assert "NOTSET" not in done.text


def test_refused_combinations_are_one_clear_error(place: Path) -> None:
    to = place / "refused"
    to.mkdir(exist_ok=True)
    (place / "file").write_bytes(b"")
    commands = {
        "--stage=/none: expected a folder, found nothing there": ["--stage=/none"],
        "/file: expected a folder, found a file there": [f"--stage={place / 'file'}"],
        "--stage=s3://***@b: expected a folder to copy to": ["--stage=s3://u:s3cr3t@b"],
        "is measured as a storage already; name another folder": [
            f"--stage={to}",
            f"--storage={to}",
        ],
        "loads from there are cold; leave --cache out": [f"--stage={to}", "--cache=warm"],
    }
    done = tries([[*RUN, *each] for each in commands.values()])
    for said, one in zip(commands, done, strict=True):
        assert one.code == pytest.ExitCode.USAGE_ERROR
        assert said in one.text
        assert "s3cr3t" not in one.text
        assert "Traceback" not in one.text


def places(*folders: Path) -> list:
    choices = tuple(StorageChoice(label=None, path=str(folder)) for folder in folders)
    return list(name_storages(choices, "unused"))


def test_a_copy_from_each_storage_to_the_staged_one(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    named = places(tmp_path / "a", tmp_path / "b")
    assert stage_cases(named, ("cold", "warm")) == []
    named.append(staged_place(str(tmp_path / "c"), named, ("cold", "warm")))
    cases = stage_cases(named, ("cold", "warm"))
    assert [case.storage for case in cases] == [named[0].label, named[1].label]
    assert {case.options["to"] for case in cases} == {named[2].label}
    assert {case.cache for case in cases} == {"cold"}
    assert not any(str(tmp_path) in case.test_id for case in cases)


def test_memory_is_looked_at_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tmpfs may be larger than the memory that is free."""
    monkeypatch.setattr(staging, "mount_of", lambda path: SimpleNamespace(fs_type="tmpfs"))
    monkeypatch.setattr(staging, "available_bytes", lambda: 1000)
    room(tmp_path, 1000)
    with pytest.raises(StagingError, match="of memory needed to stage the checkpoint"):
        room(tmp_path, 1001)


def test_in_memory_only_warm_loads_are_held_against(tmp_path: Path) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or not os.access(shared, os.W_OK):
        pytest.skip("no /dev/shm here")
    with pytest.raises(SettingsError, match="loads from there are warm"):
        staged_place(str(shared), places(tmp_path), ("cold",))
    with pytest.raises(SettingsError, match="held against cold loads"):
        staged_place(str(shared), places(tmp_path), ("warm",))
    made = staged_place(str(shared), places(tmp_path), ("cold", "warm"))
    assert isinstance(made, Storage)
    assert made.staged is not None


def test_only_what_is_new_is_removed(tmp_path: Path) -> None:
    data = tmp_path / ".coldload"
    assert there_before(data) == frozenset()
    remove_new(data, frozenset())
    (data / "old").mkdir(parents=True)
    before = there_before(data)
    (data / "new" / "deep").mkdir(parents=True)
    (data / "file").write_bytes(b"x")
    (data / "link").symlink_to(data / "old")
    remove_new(data, before)
    assert [path.name for path in data.iterdir()] == ["old"]
    (data / "old").rmdir()
    remove_new(data, before)
    assert not data.exists()
