"""The loaders `snapshot` and `sharded-state`, alone and in runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_loaders import Stamps
from tiny_snapshot import assembled, model, same, snapshot
from tiny_synth import make

from bench.ground.prepare import prepare
from loaders.checkpoint.manifest import CheckpointError
from loaders.checkpoint.read import open_checkpoint
from loaders.io.errors import LoadError, TruncatedError
from loaders.registry import get
from loaders.slicing.plan import Degrees
from tests.tiny_contract import leaves_nothing  # noqa: F401 - a fixture
from tests.tiny_runs import run_pytest, samples

SMOKE = ("bench/bench_disk_to_host.py", "--benchmark-disable", "--size=2MiB")


def loaded(name: str, path: Path, **options: object) -> dict[str, torch.Tensor]:
    loader = get(name)(2, **options)
    return {key: tensor.clone() for key, tensor in loader.load(open_checkpoint(path), Stamps())}


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("rows", [True, False])
def test_restored_as_assembled(rows: bool, tmp_path: Path) -> None:
    source = model(tmp_path / "m", "mixtral-8x7b", size=4 << 20)
    snapshot(source, tmp_path / "s", 2)
    for rank in (0, 1):
        path = tmp_path / "s" / f"rank-0000{rank}-of-00002.snapshot"
        expected = assembled(source, Degrees(tp=2), rank)
        assert same(loaded("snapshot", path, rows=rows), expected)
        checkpoint = open_checkpoint(path)
        parts: dict[str, list[torch.Tensor]] = {}
        for name, _, part in get("snapshot")(2, block_mib=1).load_rows(checkpoint, Stamps()):
            parts.setdefault(name, []).append(part.clone())
        whole = {
            name: torch.cat(some) if some[0].dim() else some[0] for name, some in parts.items()
        }
        assert same(whole, expected)


def test_a_folder_of_ranks_is_the_first_one(tmp_path: Path) -> None:
    source = model(tmp_path / "m")
    snapshot(source, tmp_path / "s", 2)
    checkpoint = open_checkpoint(tmp_path / "s")
    assert [file.name for file in checkpoint.files] == ["rank-00000-of-00002.snapshot"]
    assert [one.file for one in checkpoint.ignored] == ["rank-00001-of-00002.snapshot"]
    assert same(loaded("snapshot", tmp_path / "s"), assembled(source, Degrees(tp=2), 0))


def test_what_it_tells_the_records(tmp_path: Path) -> None:
    snapshot(model(tmp_path / "m"), tmp_path / "s")
    checkpoint = open_checkpoint(tmp_path / "s")
    loader = get("snapshot")(1)
    list(loader.load_rows(checkpoint, Stamps()))
    assert loader.counts["file_bytes"] == checkpoint.file_bytes
    assert checkpoint.facts is not None
    assert loader.counts["made_ms"] == round(1000 * checkpoint.facts["made"]["seconds"])


@pytest.mark.parametrize("rows", [True, False])
def test_another_tp_loads_nothing(rows: bool, tmp_path: Path) -> None:
    snapshot(model(tmp_path / "m"), tmp_path / "s", 2)
    checkpoint = open_checkpoint(tmp_path / "s")
    loader = get("snapshot")(1, tp=4, rows=rows)
    reason = loader.refuses(checkpoint)
    assert reason is not None
    assert "tp 4" in reason
    for load in (loader.load, loader.load_rows):
        with pytest.raises(LoadError, match="made for tp 2"):
            list(load(checkpoint, Stamps()))
    assert get("snapshot")(1, tp=2).refuses(checkpoint) is None


def test_cut_off_since_it_was_examined(tmp_path: Path) -> None:
    snapshot(model(tmp_path / "m"), tmp_path / "s")
    checkpoint = open_checkpoint(tmp_path / "s")
    path = Path(checkpoint.files[0].path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(TruncatedError):
        list(get("snapshot")(1).load_rows(checkpoint, Stamps()))
    with pytest.raises(CheckpointError, match="half-written"):
        open_checkpoint(tmp_path / "s")


def test_a_flipped_bit_is_refused_before_any_timing(tmp_path: Path) -> None:
    made = snapshot(model(tmp_path / "m"), tmp_path / "s")
    prepare(made.folder, tmp_path, "sound")
    last = open_checkpoint(tmp_path / "s").tensors[-1]
    path = tmp_path / "s" / last.file
    data = bytearray(path.read_bytes())
    data[(last.offset or 0) + last.nbytes // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="checksum-mismatch"):
        prepare(made.folder, tmp_path, "damaged")
    done = run_pytest(*SMOKE, f"--model={tmp_path / 's'}", f"--run-dir={tmp_path / 'run'}")
    assert done.code != 0
    assert "aren't those that were written" in done.text
    assert not (tmp_path / "run").exists() or not samples(tmp_path / "run")


def test_a_snapshot_is_benched_like_any_model(tmp_path: Path) -> None:
    snapshot(model(tmp_path / "m"), tmp_path / "s", 2)
    loaders = ("--loader=snapshot", "--loader=direct")
    done = run_pytest(*SMOKE, f"--model={tmp_path / 's'}", f"--run-dir={tmp_path / 'r'}", *loaders)
    assert done.code == 0, done.text
    found = samples(tmp_path / "r")
    mine = [one for one in found if one["loader"] == "snapshot"]
    assert {one["status"] for one in mine} == {"ok"}
    assert all(one["verified"] for one in mine)
    assert all(one["details"]["counts"]["made_ms"] >= 0 for one in mine)
    (reason,) = {one["reason"] for one in found if one["loader"] == "direct"}
    assert reason == "reads safetensors; this model is snapshot"


def test_a_built_in_shape_gets_its_snapshot_once(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    loaders = ("--loader=snapshot", "--loader=direct", f"--storage=disk:{tmp_path / 'disk'}")
    seen = []
    for name in ("first", "second"):
        done = run_pytest(*SMOKE, *loaders, f"--run-dir={tmp_path / name}")
        assert done.code == 0, done.text
        mine = [one for one in samples(tmp_path / name) if one["loader"] == "snapshot"]
        assert {one["status"] for one in mine} == {"ok"}
        (path,) = (tmp_path / "disk").rglob("*.snapshot")
        seen.append((path, path.stat().st_ino, path.stat().st_mtime_ns))
    assert seen[0] == seen[1]


def test_a_real_model_is_made_into_one_where_its_loader_is_named(tmp_path: Path) -> None:
    make(tmp_path / "m")
    done = run_pytest(
        *SMOKE,
        f"--model={tmp_path / 'm'}",
        "--loader=snapshot",
        f"--run-dir={tmp_path / 'run'}",
    )
    assert done.code == 0, done.text
    assert {one["status"] for one in samples(tmp_path / "run")} == {"ok"}
    assert len(list((tmp_path / "m" / ".coldload").rglob("*.snapshot"))) == 1
