"""A snapshot of what a rank has assembled, where restoring it takes less than assembling."""

from __future__ import annotations

import re

from bench.advice.contract import Advice, Saving, Seen, saving
from bench.record.records import Run, measured
from bench.sizes import format_size
from bench.words.names import named
from bench.words.snapshot_pays import Restored, restored

ENGINES = "sharded-state"
"""The loader of the engines' own snapshot."""

TP = re.compile(r"tp(\d+)")


def find(seen: Seen) -> Advice | None:
    """A snapshot was restored cold in less than the fastest other way to the same takes; of several
    storages the one where most is saved."""
    found = [
        (saved, one)
        for one in restored(seen.run, seen.reading)
        if (saved := saving(one.instead, one.restore)) is not None and one.pays.starts is not None
    ]
    if not found:
        return None
    saved, best = max(found, key=lambda pair: pair[0].seconds)
    return _advice(seen.run, saved, best)


def _advice(run: Run, saved: Saving, best: Restored) -> Advice:
    group, pays = best.row.group, best.pays
    degree = TP.search(group.layout)
    tp = f" --tp {degree[1]}" if degree else ""
    make = f"coldload snapshot /path/to/model /path/to/snapshot{tp}"
    return Advice(
        name="snapshot",
        title="Keep what a rank has assembled, and restore that",
        seen=f"Cold on {group.storage}: restored in {pays.restore:.2f} s, {named(best.other)} took "
        f"{pays.other:.2f} s to the same; made once in {pays.cost:.1f} s.",
        do=_lines(run, group.layout, make),
        cost=f"{format_size(pays.disk_bytes)} more on the disk for each rank, made anew for every "
        f"change of the model or of tp; it pays from start {pays.starts} on",
        saving=saved,
    )


def _lines(run: Run, layout: str, make: str) -> tuple[str, ...]:
    """The engines' own format only where this run has loaded this model in it: for many it is
    refused, and a command that is refused is no advice."""
    for sample in measured(run.settled()):
        if sample.loader == ENGINES and sample.layout == layout:
            return (
                f"{make} --format sharded-state",
                "vllm serve /path/to/snapshot --load-format sharded_state",
            )
    return (
        make,
        "its loader is loaders/restore.py: no engine has one, and none is set to it by a flag",
    )
