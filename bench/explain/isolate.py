"""A stage by itself: the difference of two starts that differ in one setting only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from bench.explain.record import ColdStart

Way = Literal["eager", "dummy", "override"]

# the one setting in which the other run should differ
_DIFFERS: Mapping[Way, str] = {
    "eager": "enforce_eager",
    "dummy": "load_format",
    "override": "num_gpu_blocks_override",
}
_ASSUMES: Mapping[Way, str] = {
    "eager": "that everything else takes as long without graphs; compiling is dropped with them, "
    "so its time is in the difference",
    "dummy": "that filling random weights takes no time of note and that the rest of the start "
    "doesn't depend on their values",
    "override": "that the blocks asked for fit: the override replaces the profiled number after "
    "profiling has run",
}
_COMPARED = (
    "model", "dtype", "quantization", "tensor_parallel_size", "pipeline_parallel_size",
    "data_parallel_size", "gpu_memory_utilization", "load_format", "max_model_len",
    "max_num_batched_tokens", "max_num_seqs", "block_size", "swap_space", "enforce_eager",
    "max_seq_len_to_capture", "num_gpu_blocks_override", "engine", "vllm_version", "device",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """`seconds` of what the subtraction isolates; None where it can't be had, then `verdict` says
    why. `differences` are the settings that weren't equal although they should have been."""

    way: Way
    isolates: str
    seconds: float | None
    verdict: str
    assumes: str
    differences: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "differences": list(self.differences)}


def isolate(base: ColdStart, other: ColdStart, way: Way) -> Isolation:
    """What the other run (eager, dummy weights, or overridden blocks) tells of the base run."""
    differences = _differences(base, other, way)
    if way == "override":
        return Isolation(
            way=way,
            isolates="profiling or pool?",
            seconds=None,
            verdict=_profiling_or_pool(base, other),
            assumes=_ASSUMES[way],
            differences=differences,
        )
    isolates = "capture and warm-up (with compiling)" if way == "eager" else "the weights stage"
    a, b, of = _pair(base, other, way)
    seconds = None if a is None or b is None else round(a - b, 3)
    if seconds is None:
        verdict = f"can't be subtracted: {_missing(base, other)}"
    elif seconds < 0:
        verdict = f"{of}: the other run took longer ({b:g} s, {a:g} s here); nothing is shown"
    else:
        verdict = f"{of}: {a:g} s - {b:g} s = {seconds:g} s"
    printed = base.phases.graph_capture_secs if way == "eager" else base.phases.load_model_seconds
    if seconds is not None and printed is not None:
        what = "graph capture" if way == "eager" else "loading the model"
        verdict += f" (the log prints {printed:g} s for {what})"
    return Isolation(
        way=way,
        isolates=isolates,
        seconds=seconds,
        verdict=verdict,
        assumes=_ASSUMES[way],
        differences=differences,
    )


def _pair(base: ColdStart, other: ColdStart, way: Way) -> tuple[float | None, float | None, str]:
    """The two figures to subtract: without graphs the engine's own initialisation is the closer
    frame; the weights lie outside of it, so there it is the wall time."""
    if way == "eager":
        a, b = base.phases.init_engine_secs, other.phases.init_engine_secs
        if a is not None and b is not None:
            return a, b, "init engine"
    return base.phases.startup_wall_secs, other.phases.startup_wall_secs, "wall time"


def _missing(base: ColdStart, other: ColdStart) -> str:
    lacking = [
        f"the {name} run is {record.status}"
        if record.status != "ready"
        else f"the {name} log has no times"
        for name, record in (("base", base), ("other", other))
        if record.phases.startup_wall_secs is None
    ]
    return " and ".join(lacking) or "a figure is missing"


def _profiling_or_pool(base: ColdStart, other: ColdStart) -> str:
    if base.status == "ready":
        return "the base run didn't fail: nothing to tell apart"
    if other.status == "ready":
        return (
            "the pool: with the blocks given the engine starts, so profiling works and computed "
            "too few blocks"
        )
    if other.failure_kind == "profiling_failed":
        return "profiling: it fails with the blocks given, too"
    if other.status == "failed":
        return (
            f"neither is shown: the run with the override fails otherwise "
            f"({other.failure_kind}: {(other.failure or '')[:160]})"
        )
    return "nothing is shown: the run with the override is incomplete"


def _differences(base: ColdStart, other: ColdStart, way: Way) -> tuple[str, ...]:
    found = []
    for name in _COMPARED:
        a, b = getattr(base, name), getattr(other, name)
        if name == _DIFFERS[way]:
            if a == b and a is not None:
                found.append(f"{name} is {a} in both: this is the setting that should differ")
        elif a != b:
            found.append(f"{name}: {a} here, {b} there")
    return tuple(found)
