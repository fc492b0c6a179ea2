"""A stage by the difference of two starts: what it is worth."""

from __future__ import annotations

from typing import Any

from bench.explain.isolate import isolate
from bench.explain.record import ColdStart, Phases


def isolation(**runs: tuple[float | None, float | None, float]) -> dict[str, Any]:
    """Of runs with `(load_model, init_engine, wall)` seconds."""
    started = {
        name: ColdStart(
            status="ready",
            phases=Phases(load_model_seconds=load, init_engine_secs=init, startup_wall_secs=wall),
        )
        for name, (load, init, wall) in runs.items()
    }
    base, dummy = started.pop("base"), started.pop("dummy")
    return isolate(base, dummy, "dummy", list(started.values())).to_json()


def test_a_subtraction_carries_its_doubt() -> None:
    """The wall times of a busy host differed by 30.1 s where the weights took 0.31 s."""
    busy = {"base": (0.31, 80.0, 119.5), "dummy": (0.2, 50.0, 89.4)}
    alone = isolation(**busy)
    assert (alone["seconds"], alone["doubt"]) == (0.11, None)
    assert "isn't known" in alone["verdict"]
    unlike = isolation(**busy, eager=(0.5, 20.0, 60.0))
    assert (unlike["seconds"], unlike["doubt"]) == (None, 0.19)
    assert "nothing is shown" in unlike["verdict"]
    alike = isolation(**busy, eager=(0.32, 20.0, 60.0))
    assert (alike["seconds"], alike["doubt"]) == (0.11, 0.01)
    assert "give or take 0.01 s" in alike["verdict"]


def test_a_difference_of_wall_times_is_no_more_than_the_stage() -> None:
    found = isolation(base=(0.31, 80.0, 119.5), dummy=(None, 50.0, 89.4))
    assert (found["seconds"], found["doubt"]) == (None, 30.0)
    assert "more than the 0.31 s" in found["verdict"]
    swallowed = isolation(base=(None, 80.0, 119.5), dummy=(None, 50.0, 99.5))
    assert (swallowed["seconds"], swallowed["doubt"]) == (None, 30.0)
    told = isolation(base=(None, 80.0, 319.5), dummy=(None, 79.0, 119.5))
    assert (told["seconds"], told["doubt"]) == (200.0, 1.0)
    assert isolation(base=(None, None, 90.0), dummy=(None, None, 60.0))["doubt"] is None
