"""Rates of a run of this suite that a log's weights stage can be compared with."""

from __future__ import annotations

from pathlib import Path

from bench.explain.build import printed_settings
from bench.explain.record import ColdStart
from bench.explain.savings import Rates
from bench.explain.settings import pairs, plain
from bench.explain.state import State
from bench.record.records import read_run
from bench.record.summary import Row, rows

_LOADERS = {
    "npcache": "npcache",
    "pt": "pt",
    "fastsafetensors": "fastsafetensors",
    "instanttensor": "instanttensor",
    "runai_streamer": "runai-streamer",
    "tensorizer": "tensorizer",
}


def measured_rates(folder: Path, state: State, record: ColdStart) -> Rates | None:
    """The best cold rate of the run, and that of the way which the engine took; None if the run has
    no cold row that was seen to be cold. RecordsError if it can't be read."""
    cold = [
        row
        for row in rows(read_run(folder))
        if row.group.cache == "cold" and not row.apart and not row.twin
    ]
    if not cold:
        return None
    best = max(cold, key=lambda row: row.rate.median)
    name = engine_loader(state, record)
    same = [row for row in cold if row.loader == name and row.group.storage == best.group.storage]
    current: Row | None = max(same, key=lambda row: row.rate.median, default=None)
    return Rates(
        best=best.rate.median,
        best_name=best.title,
        current=current.rate.median if current else None,
        current_name=current.title if current else None,
        run=str(folder),
    )


def engine_loader(state: State, record: ColdStart) -> str:
    """The loader of this suite that does what the engine did."""
    printed, _ = printed_settings(state)
    extra = pairs(str(plain(printed.get("model_loader_extra_config", ""))) or "")
    strategy = plain(printed.get("safetensors_load_strategy", ""))
    if (state.bar and state.bar.what.startswith("Multi-thread")) or (
        extra.get("enable_multithread_load", "").lower() == "true"
    ):
        return "safetensors-threads"
    if strategy in ("eager", "prefetch"):
        return f"safetensors-{strategy}"
    return _LOADERS.get(record.load_format or "", "safetensors-mmap")
