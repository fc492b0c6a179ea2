"""A dry run: what would be measured, how long that takes, what it writes and reads; nothing is
measured, nothing made, nothing downloaded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bench.ground.prepare import shape_folder
from bench.ground.storages import Storage, name_storages
from bench.record.cases import Case
from bench.run.forecast import case_lines, earlier_look, forecast, lines_of
from bench.settings import Settings, StorageChoice
from loaders.checkpoint.manifest import UnreadableError
from tests.tiny_bench import make_tiny
from tests.tiny_runs import Done, run_pytest, tries

CASES = [
    Case(phase="ceiling", loader="direct-ring", cache="cold", storage="here"),
    Case(phase="disk_to_host", loader="parallel", cache="cold", storage="here", threads=2),
    Case(phase="disk_to_host", loader="parallel", cache="warm", storage="here", threads=2),
    Case(phase="host_to_device", loader="whole", device="cuda:0"),
]
RATES = {"direct": 2e9, "cold": 1e9, "warm": 2e9}


def here(folder: Path) -> list[Any]:
    return name_storages((StorageChoice(label="here", path=str(folder)),), folder)


def settings(model: str = "llama-3.1-8b", **more: Any) -> Settings:
    return Settings(**{"model": model, "size": 1 << 30, "seed": 1, **more})


def write_look(folder: Path, storage: Storage, rates: dict[str, float]) -> None:
    """A run that looked at the storage's mount under another label."""
    folder.mkdir(parents=True)
    facts = {"mount_point": storage.record.mount, "block": {"disk": storage.record.device}}
    lines = [
        {"kind": "plan", "schema": 1},
        {
            "kind": "host",
            "schema": 1,
            "host": {"storage": {"other": facts}},
            "first_look": {"other": {"rates": rates}},
        },
    ]
    (folder / "records.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "storage"
    folder.mkdir()
    return folder


def test_without_an_earlier_look_the_time_is_a_span_and_says_of_what(place: Path) -> None:
    found = forecast(settings(budget=3600.0), here(place), CASES)
    assert found.seconds is not None
    assert found.seconds[0] < found.seconds[1]
    assert "no run looked at this storage" in "\n".join(lines_of(found, CASES, 3))
    assert list(place.iterdir()) == []


def test_an_earlier_look_at_the_same_mount_gives_the_time_and_the_size(place: Path) -> None:
    (storage,) = here(place)
    write_look(Path("runs/1"), storage, RATES)
    write_look(Path("runs/0"), storage, {"direct": 1.0, "cold": 1.0, "warm": 1.0})  # an older one
    found = forecast(settings(budget=3600.0), [storage], CASES)
    assert found.seconds is not None
    assert found.seconds[0] == found.seconds[1]
    assert found.size == 1 << 30
    short = forecast(settings(budget=5.0), [storage], CASES)
    assert short.size is not None
    assert short.size < found.size
    assert any("halved from 1.00 GiB" in note for note in short.notes)


@pytest.mark.parametrize(
    "content", [b"", b"{}\n", b"\xff\xfe\n", b"[1]\n", b'{"kind": "host"}\n', b'{"kind": "ho']
)
def test_a_broken_run_is_no_look(place: Path, content: bytes) -> None:
    Path("runs/9").mkdir(parents=True)
    Path("runs/9/records.jsonl").write_bytes(content)
    (storage,) = here(place)
    assert earlier_look(storage) is None
    write_look(Path("runs/1"), storage, RATES)
    assert earlier_look(storage) is not None


def test_what_is_made_and_what_is_read_is_told_in_bytes(place: Path) -> None:
    (storage,) = here(place)
    found = forecast(settings(), [storage], CASES)
    assert found.written["here"] % (1 << 30) == 0
    assert found.written["here"] >= 1 << 30
    assert found.read["here"] > 3 * (1 << 30)
    made = shape_folder(storage.data, "llama-3.1-8b", 1 << 30, None) / "safetensors"
    made.mkdir(parents=True)
    again = forecast(settings(), [storage], CASES)
    assert again.written["here"] == found.written["here"] - (1 << 30)


def test_a_real_model_is_read_where_it_lies_and_copied_where_it_does_not(
    place: Path, tmp_path: Path
) -> None:
    model = make_tiny(tmp_path / "model")
    where = forecast(settings(str(model)), here(model), CASES)
    assert where.written == {"here": 0}
    away = forecast(
        settings(str(model), storages=(StorageChoice(label="here", path=str(place)),)),
        here(place),
        CASES,
    )
    nbytes = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    assert away.written == {"here": nbytes}
    assert list(place.iterdir()) == []


def test_a_model_of_the_hub_is_not_downloaded_to_tell(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(place))
    before = os.environ.get("HF_HUB_OFFLINE")
    found = forecast(settings("nobody-here/no-such-model"), here(place), CASES)
    assert found.size is None
    assert any("to be downloaded first" in note for note in found.notes)
    assert "of unknown size" in "\n".join(lines_of(found, CASES, 3))
    assert os.environ.get("HF_HUB_OFFLINE") == before


@pytest.mark.parametrize("model", ["./none", "/none/model", "no-such-shape"])
def test_a_model_that_is_nowhere_is_an_error(place: Path, model: str) -> None:
    with pytest.raises(UnreadableError):
        forecast(settings(model), here(place), CASES)


def test_each_case_is_one_line_with_what_and_where(place: Path) -> None:
    lines = case_lines(CASES, here(place))
    assert len(lines) == len(CASES)
    assert f"here ({place.resolve()}), cold" in lines[0]
    assert "parallel, 2 threads" in lines[1]
    assert "cuda:0" in lines[3]


FEW = ["--benchmark-only", "--loader=example", "--cache=cold"]


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    place = tmp_path_factory.mktemp("storage")
    few = [*FEW, f"--storage=x:{place}", f"--run-dir={place / 'run'}"]
    asked = {
        "plan": [*few, "--plan"],
        "list": [*few, "--collect-only"],
        "ids": [*few, "--collect-only", "-q"],
        "some": [*few, "--collect-only", "-k", "direct-ring"],
        "fault": [*FEW, "--plan", "--model=/none"],
    }
    found = dict(zip(asked, tries([*asked.values()]), strict=True))
    assert list(place.iterdir()) == []
    return found


def test_collect_only_lists_each_case_once(listed: dict[str, Done]) -> None:
    done = listed["list"]
    assert done.code == pytest.ExitCode.OK
    loads = [line for line in done.text.splitlines() if line.startswith("disk_to_host  ")]
    assert len(loads) == 2  # the loader, and once more under its other name
    assert all(" x (" in line and ", cold" in line for line in loads)
    assert "This run would measure" in done.text
    assert "Function" not in done.text


def test_quiet_gives_ids_for_machines_as_ever(listed: dict[str, Done]) -> None:
    assert "::bench_ceiling[" in listed["ids"].text
    assert "This run would" not in listed["ids"].text


def test_only_what_was_selected_is_listed(listed: dict[str, Done]) -> None:
    cases = [line for line in listed["some"].text.splitlines() if line.startswith("ceiling ")]
    assert len(cases) == 1


def test_plan_tells_time_and_bytes_and_lists_nothing(listed: dict[str, Done]) -> None:
    done = listed["plan"]
    assert done.code == pytest.ExitCode.OK
    for word in ("  model   ", "  cases   ", "  time    ", "  writes  ", "  reads   "):
        assert word in done.text
    assert "disk_to_host  " not in done.text


def test_a_plan_for_what_can_not_be_read_is_one_clear_error(listed: dict[str, Done]) -> None:
    done = listed["fault"]
    assert done.code == pytest.ExitCode.USAGE_ERROR
    assert "/none" in done.text
    assert "Traceback" not in done.text


def test_plan_alone_means_the_benches() -> None:
    done = run_pytest("--plan", "--benchmark-only", "--loader=example", "-q")
    assert "This run would measure" in done.text
