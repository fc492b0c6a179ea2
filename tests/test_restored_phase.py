"""The way `restored` of the phases that assemble: the same parameters, from a snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_synth import make

from bench.ground.kept_state import form_of
from bench.record.cases import Case
from tests.tiny_runs import run_pytest, samples

SMOKE = ("--benchmark-disable", "--size=2MiB")


def run(bench: str, tmp_path: Path, *options: str) -> list[dict[str, Any]]:
    done = run_pytest(f"bench/bench_{bench}.py", *SMOKE, *options, f"--run-dir={tmp_path / 'run'}")
    assert done.code == 0, done.text
    return samples(tmp_path / "run")


def test_w8a8_restores_what_the_other_ways_come_to(tmp_path: Path) -> None:
    """In every layout: one digest over names, dtypes, shapes and bytes."""
    (tmp_path / "disk").mkdir()
    storage = f"--storage=disk:{tmp_path / 'disk'}"
    found = run("w8a8", tmp_path, "--full", "--tp=2", "--model=qwen3-30b-a3b", storage)
    for into in ("nz", "transpose", "view"):
        mine = [one for one in found if one["options"]["into"] == into]
        assert {one["loader"] for one in mine} == {"online", "offline", "restored"}
        assert {one["status"] for one in mine} == {"ok"}, [one["reason"] for one in mine]
        assert all(one["verified"] for one in mine)
        assert len({one["details"]["state_digest"] for one in mine}) == 1
        assert len({one["bytes"] for one in mine}) == 1
        counts = [one["details"]["counts"] for one in mine if one["loader"] == "restored"]
        assert all(one["made_ms"] > 0 and one["file_bytes"] > 0 for one in counts)


@pytest.mark.parametrize("layout", [(), ("--tp=2",), ("--tp=2", "--ep")])
def test_assemble_restores_the_middle_rank(layout: tuple[str, ...], tmp_path: Path) -> None:
    make(tmp_path / "m", shape="mixtral-8x7b", size=2 << 20)
    found = run("assemble", tmp_path, f"--model={tmp_path / 'm'}", *layout)
    whole = [
        one
        for one in found
        if one["options"].get("into") == "parameters" and "part" not in one["options"]
    ]
    mine = [one for one in whole if one["loader"] == "restored"]
    assert mine
    assert {one["status"] for one in mine} == {"ok"}, [one["reason"] for one in mine]
    assert all(one["verified"] for one in mine)
    assert len({one["bytes"] for one in whole if one["status"] == "ok"}) == 1
    (path,) = (tmp_path / "m" / ".coldload").rglob("*.snapshot")
    assert path.name == (
        "rank-00001-of-00002.snapshot" if layout else "rank-00000-of-00001.snapshot"
    )


def test_what_was_made_for_it_is_named_by_share_and_layout() -> None:
    case = Case(phase="w8a8", loader="restored", layout="tp8-ep", options={"into": "nz"})
    assert form_of(case) == "restored-tp8-ep-int8-nz"
