"""bench_assemble as a user starts it: named loaders, and a rank's share of a model with experts."""

from __future__ import annotations

from pathlib import Path

from bench.synth.write import make_checkpoint
from tests.tiny_runs import run_pytest, samples

NAMED = ("parallel:pages=4k", "direct:rows=true")


def test_named_loaders_are_assembled_for_a_rank_of_tp_and_ep(tmp_path: Path) -> None:
    model = tmp_path / "model"
    make_checkpoint(
        "qwen3-30b-a3b", model, size=4 << 20, shards=2, format="safetensors", dtype=None, seed=0,
        progress=lambda done, total: None,
    )  # fmt: skip
    done = run_pytest(
        *("bench/bench_assemble.py", "--benchmark-only", f"--model={model}", "--cache=warm"),
        *(f"--loader={name}" for name in NAMED),
        *("--tp", "2", "--ep", "--passes=1", f"--run-dir={tmp_path / 'run'}"),
    )
    assert done.code == 0, done.text
    found = {
        (one["loader"], one["options"].get("by")): one
        for one in samples(tmp_path / "run")
        if one["phase"] == "assemble" and one["options"].get("into") in {"parameters", "nowhere"}
        and "part" not in one["options"]
    }  # fmt: skip
    own = {(way, None) for way in ("stock", "read-alone", "overlapped", "restored")}
    assert found.keys() == own | {
        (way, name) for name in NAMED for way in ("read-alone", "staged", "overlapped")
    }
    for (way, _), one in found.items():
        assert one["status"] == "ok", one["reason"]
        assert one["layout"] == "tp2-ep"
        assert one["verified"] is (None if way == "read-alone" else True)
    assert "checkpoint -> parameters: tp2-ep, warm" in done.text
    for title in ("sum s", "overlapped s", "bound s", *NAMED):
        assert title in done.text
