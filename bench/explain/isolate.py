"""A stage by itself: the difference of two starts that differ in one setting only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


# the figure that frames the stage in which the other run differs, what frames it is called, and
# a figure that this difference doesn't touch
_FRAME: Mapping[Way, tuple[str, str, str]] = {
    "eager": ("init_engine_secs", "init engine", "load_model_seconds"),
    "dummy": ("load_model_seconds", "loading the model", "init_engine_secs"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """`seconds` of what the subtraction isolates; None where it can't be had, or where it is no
    more than its `doubt`, then `verdict` says why. `doubt` is how far the same figure differs
    between starts in which it should be equal, None where there are none. `differences` are the
    settings that weren't equal although they should have been."""

    way: Way
    isolates: str
    seconds: float | None
    doubt: float | None
    verdict: str
    assumes: str
    differences: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "differences": list(self.differences)}


def isolate(
    base: ColdStart, other: ColdStart, way: Way, twins: Sequence[ColdStart] = ()
) -> Isolation:
    """What the other run (eager, dummy weights, or overridden blocks) tells of the base run.
    `twins` are further starts that differ from the base run in another setting than this one."""
    if way == "override":
        isolates, seconds, doubt = "profiling or pool?", None, None
        verdict = _profiling_or_pool(base, other)
    else:
        isolates = "capture and warm-up (with compiling)" if way == "eager" else "the weights stage"
        seconds, doubt, verdict = _subtracted(base, other, way, twins)
    return Isolation(
        way=way,
        isolates=isolates,
        seconds=seconds,
        doubt=doubt,
        verdict=verdict,
        assumes=_ASSUMES[way],
        differences=_differences(base, other, way),
    )


def twins_of(way: Way, others: Mapping[Way, ColdStart]) -> list[ColdStart]:
    """The runs whose figure of the stage should be the base run's: they differ elsewhere."""
    return [one for name, one in others.items() if name not in (way, "override")]


def _subtracted(
    base: ColdStart, other: ColdStart, way: Way, twins: Sequence[ColdStart]
) -> tuple[float | None, float | None, str]:
    """`(seconds, doubt, verdict)`. The engine's own figure of the stage is the closest frame. Where
    a run lacks it there is the wall time: it holds all else that differed between the two, so the
    difference can't be more than the stage itself, as printed."""
    name, of, untouched = _FRAME[way]
    a, b = _figure(base, name), _figure(other, name)
    limit = None
    if a is not None and b is not None:
        doubt = largest_difference(a, [_figure(twin, name) for twin in twins])
    else:
        limit, of = a, "wall time"
        a, b = base.phases.startup_wall_secs, other.phases.startup_wall_secs
        same, there = _figure(base, untouched), _figure(other, untouched)
        doubt = None if same is None or there is None else round(abs(same - there), 3)
    if a is None or b is None:
        return None, None, f"can't be subtracted: {_missing(base, other)}"
    seconds = round(a - b, 3)
    if limit is not None and seconds > limit:
        told = f"{of}: {a:g} s - {b:g} s is more than the {limit:g} s that the stage itself took"
        return None, doubt, f"{told}: other things differed by more; nothing is shown"
    return judged(seconds, doubt, f"{of}: {a:g} s - {b:g} s = {seconds:g} s")


def judged(
    seconds: float, doubt: float | None, told: str
) -> tuple[float | None, float | None, str]:
    """`(seconds, doubt, verdict)` of a difference: None for what its doubt swallows."""
    if seconds < 0:
        return None, doubt, f"{told}: the other run took longer; nothing is shown"
    if doubt is None:
        return seconds, None, f"{told}, of one start each: how far equal ones differ isn't known"
    if seconds <= doubt:
        return None, doubt, f"{told}, but equal starts differ by {doubt:g} s; nothing is shown"
    return seconds, doubt, f"{told}, give or take {doubt:g} s (so far do equal starts differ)"


def largest_difference(value: float, others: Sequence[float | None]) -> float | None:
    """How far a figure differs from those that should equal it; None without any."""
    found = [abs(value - other) for other in others if other is not None]
    return round(max(found), 3) if found else None


def _figure(record: ColdStart, name: str) -> float | None:
    value = getattr(record.phases, name)
    return None if value is None else float(value)


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
