"""Whole runs as a user starts them: what they measure, write down and leave behind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.record.records import read_run
from bench.synth.write import make_checkpoint
from tests.tiny_runs import Done, records, run_coldload, run_pytest, samples, tries

MIB = 2**20
SHM = Path("/dev/shm")
SMOKE = ("bench", "--benchmark-disable")
LOADERS = ("--loader=example", "--loader=safetensors-mmap")
NO_PROGRAMS = {"PATH": "/no/programs/here"}
CLOCKS = "the clocks disagree"  # on a busy host; such a sample is a failure, and no figure


def make_model(folder: Path, file_format: str, shards: int = 2) -> Path:
    make_checkpoint(
        "qwen3-0.6b",
        folder,
        size=2 * MIB,
        shards=shards,
        format=file_format,
        dtype=None,
        seed=0,
        progress=lambda done, total: None,
    )
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "tiny-model", "safetensors")


def left_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


# Two storages, one of them memory, in smoke mode.


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Done, Path]]:
    place = tmp_path_factory.mktemp("smoke")
    memory = SHM / f"coldload-test-{place.name}"
    memory.mkdir()
    (place / "temporary").mkdir()
    try:
        done = run_pytest(
            *(*SMOKE, *LOADERS, "-rs", f"--storage=disk:{place}", f"--storage=shm:{memory}"),
            f"--run-dir={place / 'run'}",
            f"--benchmark-json={place / 'saved.json'}",
            env={"TMPDIR": str(place / "temporary")},
        )
        yield done, place
    finally:
        shutil.rmtree(memory)


def test_smoke_passes_and_says_that_its_figures_mean_nothing(smoke: tuple[Done, Path]) -> None:
    done, _ = smoke
    assert done.code == 0, done.text
    assert "(smoke: these figures mean nothing)" in done.text


def test_whoever_waits_sees_where_the_run_is(smoke: tuple[Done, Path]) -> None:
    """Though a sample is taken within a test, whose output pytest holds back."""
    lines = smoke[0].text.splitlines()
    assert any(line.startswith("first look at disk (") for line in lines)
    assert any(line.startswith("measuring ") and " cases x 1 passes" in line for line in lines)
    assert any(line.startswith("pass 1/1  0/") for line in lines)


def test_smoke_is_marked_16_mib_and_one_pass(smoke: tuple[Done, Path]) -> None:
    found = samples(smoke[1] / "run")
    assert all(sample["smoke"] is True for sample in found)
    assert {sample["pass"] for sample in found} == {1}
    assert {sample["size"] for sample in found} == {found[0]["size"]}
    assert 0.9 * 16 * MIB <= found[0]["size"] <= 16 * MIB
    plan = records(smoke[1] / "run")[0]
    assert (plan["smoke"], plan["passes"], plan["size"]) == (True, 1, found[0]["size"])


def test_the_records_begin_with_plan_and_host_and_hold_every_planned_case(
    smoke: tuple[Done, Path],
) -> None:
    lines = records(smoke[1] / "run")
    assert [line["kind"] for line in lines[:2]] == ["plan", "host"]
    assert {line["schema"] for line in lines} == {1}
    assert {line["case"] for line in lines[2:]} == set(lines[0]["cases"])
    assert len(set(lines[0]["cases"])) == len(lines[0]["cases"])


def test_c86_records_carry_the_host_and_what_each_storage_is(smoke: tuple[Done, Path]) -> None:
    """Two hosts are told apart by the host line: processor, memory, kernel, storages, versions."""
    host = records(smoke[1] / "run")[1]
    facts = host["host"]
    assert facts["cpu"]["model"]
    assert facts["kernel"]
    assert facts["memory"]
    assert set(facts["storage"]) == {"disk", "shm"}
    assert facts["storage"]["shm"]["fs_type"] == "tmpfs"
    assert {"coldload", "torch", "safetensors"} <= set(facts["packages"])
    assert "--benchmark-disable" in host["command"]
    assert host["cores"] >= 1
    for sample in samples(smoke[1] / "run"):
        if sample["storage"]:
            assert sample["storage"]["file_system"]
            assert sample["case"].endswith(f"/{sample['storage']['label']}")


def test_no_path_stands_in_a_case_id(smoke: tuple[Done, Path]) -> None:
    plan = records(smoke[1] / "run")[0]
    assert not any(str(smoke[1].name) in case or "tmp/" in case for case in plan["cases"])


def of(found: list[dict[str, Any]], label: str, cache: str) -> list[dict[str, Any]]:
    return [
        sample
        for sample in found
        if (sample["storage"] or {}).get("label") == label
        and sample["cache"]["requested"] == cache
        and sample["loader"] != "fio"
    ]


def test_two_storages_are_compared_in_one_run(smoke: tuple[Done, Path]) -> None:
    found = samples(smoke[1] / "run")
    for label in ("disk", "shm"):
        warm = of(found, label, "warm")
        assert {sample["loader"] for sample in warm} >= {"example", "safetensors-mmap"}
        assert all(sample["status"] == "ok" for sample in warm)
    assert "disk, warm" in smoke[0].text
    assert "shm, warm" in smoke[0].text


def test_memory_cannot_be_cold_which_is_said_and_not_measured(smoke: tuple[Done, Path]) -> None:
    cold = of(samples(smoke[1] / "run"), "shm", "cold")
    assert cold
    for sample in cold:
        assert sample["status"] == "skipped"
        assert sample["reason"] == "tmpfs lives in memory: it can't be cold"
        assert sample["bytes"] is None
    assert "tmpfs lives in memory: it can't be cold" in smoke[0].text


def test_c78_cold_is_proven_for_every_loader_alike(smoke: tuple[Done, Path]) -> None:
    cold = of(samples(smoke[1] / "run"), "disk", "cold")
    assert cold
    for sample in cold:
        assert sample["status"] == "ok"
        assert sample["cache"]["state"] in {"cold", "mixed", "unverified"}
        if sample["cache"]["state"] == "cold":
            assert sample["cache"]["resident_before"] < 0.05


def test_c66_c68_every_rate_stands_for_bytes_that_arrived_and_stages_are_apart(
    smoke: tuple[Done, Path],
) -> None:
    found = [sample for sample in samples(smoke[1] / "run") if sample["status"] == "ok"]
    loads = [sample for sample in found if sample["phase"] == "disk_to_host"]
    assert loads
    assert len({sample["bytes"] for sample in loads}) == 1  # the same bytes by every path
    for sample in loads:
        assert sample["verified"] is True
        seconds = sample["seconds"]
        parts = [seconds[name] for name in ("open", "allocate", "read", "consume")]
        assert seconds["consume"] > 0
        assert sum(parts) == pytest.approx(seconds["total"], abs=1e-3)
        assert sample["minor_faults"] is not None
        assert sample["major_faults"] is not None


def test_a_run_leaves_records_and_test_data_and_nothing_else(smoke: tuple[Done, Path]) -> None:
    left = left_in(smoke[1])
    assert {name for name in left if "/" not in name} == {
        *("run", ".coldload", "temporary"),
        *({"saved.json"} & left),
    }
    assert {name for name in left if name.startswith("run/")} == {"run/records.jsonl"}
    assert not any(name.startswith("temporary/") for name in left)
    assert not any("first-look" in name or "incomplete" in name for name in left)


def test_c85_no_figures_are_saved_where_nothing_was_timed(smoke: tuple[Done, Path]) -> None:
    assert not (smoke[1] / "saved.json").exists() or not (smoke[1] / "saved.json").read_text()


def test_coldload_runs_finds_the_run_complete(smoke: tuple[Done, Path]) -> None:
    done = run_coldload("runs", smoke[1] / "run")
    assert done.code == 0, done.text
    assert "0 missing" in done.text


# A real model, measured where it lies, with fio missing, and saved by pytest-benchmark.


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, model: Path) -> tuple[Done, Path]:
    place = tmp_path_factory.mktemp("measured")
    before = left_in(model)
    done = run_pytest(
        *("--benchmark-only", f"--model={model}", *LOADERS, "--loader=pt", "--passes=2", "-rs"),
        *(f"--run-dir={place / 'run'}", f"--benchmark-json={place / 'saved.json'}"),
        *("--benchmark-save=first", f"--benchmark-storage=file://{place / 'store'}"),
        env={**NO_PROGRAMS, "TMPDIR": str(place)},
    )
    assert left_in(model) == before  # nothing is written beside a model
    return done, place


def only_clocks(done: Done, run: Path) -> None:
    """The run went well, but for samples on which the clocks of a busy host disagreed."""
    assert (run / "records.jsonl").exists(), done.text
    failed = [sample for sample in read_run(run).settled() if sample.status == "failed"]
    assert all(CLOCKS in (sample.reason or "") for sample in failed), failed
    assert done.code == (1 if failed else 0), done.text


def test_a_model_is_measured_in_place(measured: tuple[Done, Path]) -> None:
    done, place = measured
    only_clocks(done, place / "run")
    assert not (place / ".coldload").exists()
    assert {line["model"] for line in samples(place / "run")} == {"tiny-model"}


def test_benchmark_only_ran_no_unit_test(measured: tuple[Done, Path]) -> None:
    assert "tests/test_" not in measured[0].text


def test_missing_fio_is_a_skip_with_its_reason(measured: tuple[Done, Path]) -> None:
    found = [sample for sample in samples(measured[1] / "run") if sample["loader"] == "fio"]
    assert [sample["status"] for sample in found] == ["skipped", "skipped"]
    assert {sample["reason"] for sample in found} == {"fio isn't installed"}
    assert "fio isn't installed" in measured[0].text


def test_a_loader_of_another_format_is_a_skip_with_its_reason(
    measured: tuple[Done, Path],
) -> None:
    found = [sample for sample in samples(measured[1] / "run") if sample["loader"] == "pt"]
    assert found
    assert {sample["status"] for sample in found} == {"skipped"}
    assert {sample["reason"] for sample in found} == {"reads pt; this model is safetensors"}


def test_c85_saved_benchmarks_hold_each_case_once_with_its_passes_as_rounds(
    measured: tuple[Done, Path],
) -> None:
    saved = json.loads((measured[1] / "saved.json").read_text())
    benches = saved["benchmarks"]
    names = [bench["fullname"] for bench in benches]
    assert len(set(names)) == len(names)
    ok = [s for s in samples(measured[1] / "run") if s["status"] == "ok" and s["loader"] != "pt"]
    passes: dict[str, set[int]] = {}
    for sample in ok:
        passes.setdefault(sample["case"], set()).add(sample["pass"])
    assert {bench["extra_info"]["case"] for bench in benches} == set(passes)
    for bench in benches:
        assert bench["stats"]["rounds"] == len(passes[bench["extra_info"]["case"]])
        for text in (bench["name"], bench["fullname"], json.dumps(bench["params"])):
            assert "pass" not in text
        assert bench["fullname"] == f"{bench['fullname'].split('::')[0]}::{bench['name']}"


def test_c85_what_is_saved_is_small(measured: tuple[Done, Path]) -> None:
    path = measured[1] / "saved.json"
    saved = json.loads(path.read_text())
    assert path.stat().st_size < 4096 * (len(saved["benchmarks"]) + 2)
    for bench in saved["benchmarks"]:
        assert set(bench["extra_info"]) == {"case", "bytes"}
        assert len(json.dumps(bench["params"])) < 200


def test_c86_saved_benchmarks_tell_machines_and_storages_apart(
    measured: tuple[Done, Path],
) -> None:
    machine = json.loads((measured[1] / "saved.json").read_text())["machine_info"]
    assert machine["cpu"]
    assert not any(key.startswith("hz_actual") for key in machine["cpu"])
    (storage,) = machine["coldload"]["storages"].values()
    assert storage[0]
    assert machine["coldload"]["cores"] >= 1


@pytest.fixture(scope="module")
def compared(
    measured: tuple[Done, Path], model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Done, Path]]:
    """Shorter runs of the same, held against the saved one, and against another machine's; and one
    whose loaders can't run."""
    place = tmp_path_factory.mktemp("compared")
    shutil.copytree(measured[1] / "store", place / "store")
    (path,) = (place / "store").rglob("*_first.json")
    saved = json.loads(path.read_text())
    saved["machine_info"]["cpu"]["brand_raw"] = "Another Processor"
    for storage in saved["machine_info"]["coldload"]["storages"].values():
        storage[:] = ["xfs", "another-disk"]
    path.write_text(json.dumps(saved))
    asked = ["--benchmark-only", f"--model={model}", "--passes=1"]
    same = [*asked, *LOADERS, "-k", "example and warm", "--benchmark-compare"]
    commands = {
        "same": [*same, f"--benchmark-storage=file://{measured[1] / 'store'}"],
        "other": [*same, f"--benchmark-storage=file://{place / 'store'}"],
        "first": [*same, f"--benchmark-storage=file://{place / 'none'}"],
        "unable": [*asked, "--loader=pt", "-k", "pt or memory-copy"],
    }
    runs = {name: place / name for name in commands}
    asked_for = [[*each, f"--run-dir={runs[name]}"] for name, each in commands.items()]
    done = tries(asked_for, NO_PROGRAMS)
    return {name: (one, runs[name]) for name, one in zip(commands, done, strict=True)}


def test_two_runs_are_compared_case_by_case(compared: dict[str, tuple[Done, Path]]) -> None:
    done, run = compared["same"]
    only_clocks(done, run)
    assert "another machine" not in done.text
    if " passed" in done.text:
        assert "bench_disk_to_host[example" in done.text
        assert "(0001_first" in done.text
        assert "(NOW)" in done.text


def test_c86_a_comparison_with_another_machine_is_flagged_and_fails_nothing(
    compared: dict[str, tuple[Done, Path]],
) -> None:
    done, run = compared["other"]
    only_clocks(done, run)
    assert "Compared with a run on another machine or storage: " in done.text
    assert "cpu.brand_raw: Another Processor then, " in done.text
    assert "coldload.storages." in done.text


def test_a_comparison_with_nothing_is_told_and_fails_nothing(
    compared: dict[str, tuple[Done, Path]],
) -> None:
    done, run = compared["first"]
    only_clocks(done, run)
    assert "Can't compare. No benchmark files" in done.text


def test_a_run_whose_loaders_can_not_run_has_measured_nothing(
    compared: dict[str, tuple[Done, Path]],
) -> None:
    """Its ceilings alone are no measurement."""
    done, _ = compared["unable"]
    assert done.code == 1, done.text
    assert "Nothing was measured" in done.text
    assert "reads pt; this model is safetensors" in done.text


# Other kinds of models.


def test_a_torch_file_is_measured_by_the_loader_that_was_asked_for(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m", "pt", shards=1)
    done = run_pytest(
        *(*SMOKE, f"--model={folder / 'pytorch_model.bin'}", "--loader=pt:mmap=true"),
        *(f"--run-dir={tmp_path / 'run'}", "-k", "disk_to_host"),
    )
    assert done.code == 0, done.text
    found = samples(tmp_path / "run")
    assert {sample["loader"] for sample in found} == {"pt"}
    assert {sample["options"]["mmap"] for sample in found} == {True}
    assert {sample["verified"] for sample in found} == {True}


def test_a_model_on_the_named_storage_is_not_copied(model: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = run_pytest(
        *(*SMOKE, f"--model={model}", "--loader=example", "-k", "disk_to_host and warm"),
        *(f"--storage=here:{model.parent}", f"--storage=there:{elsewhere}"),
        f"--run-dir={tmp_path / 'run'}",
    )
    assert done.code == 0, done.text
    assert {s["storage"]["label"] for s in samples(tmp_path / "run")} == {"here", "there"}
    assert not (model.parent / ".coldload").exists()
    (copied,) = (elsewhere / ".coldload").iterdir()
    names = {path.name for path in model.iterdir()}
    assert {path.name for path in copied.iterdir()} == names
    for name in names:
        assert (copied / name).read_bytes() == (model / name).read_bytes()
