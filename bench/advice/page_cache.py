"""A checkpoint that memory doesn't hold: what reads ahead pushes out what it just read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bench.advice.contract import Advice, Seen
from bench.record.records import measured
from bench.record.summary import title_of
from bench.sizes import format_size

HELD = 0.95


def find(seen: Seen) -> Advice | None:
    """Files were asked to be warm and weren't all there when they were read. Says nothing of
    seconds: a warm load of such a checkpoint can't be measured here."""
    parted = [
        sample
        for sample in measured(seen.run.settled())
        if sample.cache.requested == "warm"
        and sample.cache.state == "mixed"
        and sample.cache.resident_before is not None
        and sample.cache.resident_before < HELD
    ]
    if not parted:
        return None
    least = min(parted, key=lambda sample: sample.cache.resident_before or 0.0)
    memory = seen.host.get("memory") or {}
    limits = _limits(seen.host.get("cgroup_memory_limits") or ())
    room = f"; limit of the control group: {format_size(min(limits))}" if limits else ""
    usable = memory.get("usable_bytes")
    usable_words = f"{format_size(usable)} usable" if isinstance(usable, int) else "memory unknown"
    return Advice(
        name="page-cache",
        title="Memory doesn't hold the checkpoint: let nothing read ahead of the engine",
        seen=f"Asked to be warm, {100 * (least.cache.resident_before or 0.0):.0f} % of the files "
        f"were in memory before {title_of(least)}; {usable_words}{room}.",
        do=(
            "--safetensors-load-strategy lazy",
            *(("raise the container's memory limit to the model's size and more",) * bool(limits)),
        ),
        cost="reads stay at the storage's own rate at every start",
    )


def _limits(found: Iterable[Any]) -> list[int]:
    values = [one.get("bytes") if isinstance(one, dict) else one for one in found]
    return [value for value in values if isinstance(value, int)]
