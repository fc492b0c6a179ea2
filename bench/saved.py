"""What pytest-benchmark saves of the machine, and what differs from it in a later comparison.

Two runs are comparable where the same names stand for the same things: the labels of storages, the
cores, the processor. A difference is said beside the comparison and fails nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from bench.ground.storages import Place
from bench.record.records import Sample

COMPARED = ("node", "machine", "system", "release", "python_version", "cpu.brand_raw", "coldload.")
"""Keys of the machine's facts, dots between levels; one with a dot at its end stands for all below.
Others (flags, caches, compilers) follow from these or differ between tools that report them."""


def add_facts(machine: dict[str, Any], storages: Sequence[Place], cores: int) -> None:
    """Adds what the names in a run stand for; takes out the clock rate of the moment."""
    cpu = machine.get("cpu", {})
    for key in [key for key in cpu if key.startswith("hz_actual")]:
        del cpu[key]
    machine["coldload"] = {
        "cores": cores,
        "storages": {
            storage.label: [storage.record.file_system, storage.record.device]
            for storage in storages
        },
    }


def differences(now: Mapping[str, Any], saved: Mapping[str, Any]) -> list[str]:
    """`key: saved, now` for each compared fact that both know and that isn't the same."""
    here, there = dict(_flat(now)), dict(_flat(saved))
    return [
        f"{key}: {there[key]} then, {here[key]} now"
        for key in sorted(here.keys() & there.keys())
        if here[key] != there[key] and key.startswith(COMPARED)
    ]


def _flat(facts: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def merge(
    config: pytest.Config, first: dict[str, Any], benchmark: Any, key: str, sample: Sample
) -> None:
    """One row a case: the first pass keeps its row (in `first`, by key), later passes add their
    time to it and take their own out. The time is that of the sample that counts (a discarded one
    was timed first)."""
    row = benchmark.stats
    if row is None:
        return
    if sample.runner_seconds is not None:
        row.stats.data[:] = [sample.runner_seconds]
    rows = config._benchmarksession.benchmarks  # type: ignore[attr-defined]
    kept = first.get(key)
    if sample.status != "ok":
        rows.remove(row)
    elif kept is None:
        first[key] = row
    else:
        kept.stats.update(row.stats.data[0])
        rows.remove(row)
