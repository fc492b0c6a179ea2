"""Which ranks a log shows, by the names of its processes and by its "assigned as" lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bench.explain.state import State


def ranks_of(state: State, settings: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Ranks that names and "assigned as" lines show. Every worker is rank 0 of parallelisms that
    aren't used, so a lone 0 of those lines counts for TP alone."""
    named: dict[str, set[int]] = {key: set() for key in ("TP", "EP", "PP", "DP")}
    assigned: dict[str, set[int]] = {key: set() for key in ("TP", "EP", "PP", "DP")}
    numbered: set[int] = set()
    for name in state.names:
        for key, rank in re.findall(r"(?<![A-Z])(TP|EP|PP|DP)(\d+)", name):
            named[key].add(int(rank))
        if found := re.fullmatch(r"(?:EngineCore|CoreEngine)_(\d+)", name):
            named["DP"].add(int(found[1]))
        if found := re.fullmatch(r"VllmWorker (?:rank=)(\d+)", name):
            numbered.add(int(found[1]))
    for event in state.all("assigned"):
        for key, rank in re.findall(r"\b(TP|EP|PP|DP) rank (\d+)", event.groups[2] or ""):
            assigned[key].add(int(rank))
    tp_size = settings["tensor_parallel_size"]
    found_ranks = {
        key: named[key] | (assigned[key] if key == "TP" or assigned[key] != {0} else set())
        for key in named
    }
    if not found_ranks["TP"] and numbered:
        found_ranks["TP"] = {rank % tp_size if tp_size else rank for rank in numbered}
    alone = (tp_size or 1) == 1 and (settings["pipeline_parallel_size"] or 1) == 1
    begun = state.events.keys() & {"engine", "load_begin", "weights_size", "model_took"}
    pools = {
        event.worker
        for name in state.events
        for event in state.all(name)
        if event.worker.startswith("pid")
    }
    if not found_ranks["TP"] and alone and len(pools) < 2 and begun:
        found_ranks["TP"] = {0}
    return {
        "tp_ranks": tuple(sorted(found_ranks["TP"])),
        "ep_ranks": tuple(sorted(found_ranks["EP"])),
        "pp_ranks": tuple(sorted(found_ranks["PP"])),
        "dp_engines": tuple(sorted(found_ranks["DP"])),
    }
