"""The table of assembling: for each loader its stages alone, their sum, the overlapped total and
the bound. Reads records only."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rich.markup import escape
from rich.table import Table

from bench.record.records import Run
from bench.record.stats import spread
from bench.record.summary import Group
from bench.words.assembly_seen import INTO, OURS, STAGES, STOCK, Place, Walked, places
from loaders.checkpoint.text import printable

GB = 1e9
TITLES = {OURS: "ours", STOCK: "stock (the engine's way)"}


def assembly_tables(run: Run) -> list[tuple[str, Table]]:
    """(title, table) for each place."""
    return [(f"checkpoint -> parameters: {one.title}", _table(one)) for one in places(run)]


def in_assembly_tables(group: Group) -> bool:
    """Whether what a group holds stands in these tables, stage by stage."""
    return group.phase == "assemble" and group.subject in INTO


def _table(place: Place) -> Table:
    """The fastest first, overlapped."""
    made = sorted(place.ways.items(), key=lambda one: _middle(one[1].overlapped))
    stages = [name for name in STAGES if any(way.middle(name) for _, way in made)]
    table = Table(box=None, pad_edge=False)
    table.add_column("way", justify="left", no_wrap=True)
    for title in (
        *("GB", "GB/s", "range"),
        *(f"{name} s" for name in stages),
        *("sum s", "overlapped s", "bound s", "x bound"),
    ):
        table.add_column(title, justify="right", no_wrap=True)
    for name, way in made:
        table.add_row(*_row(name, way, place.nbytes, stages))
    return table


def _row(name: str, way: Walked, nbytes: int, stages: Sequence[str]) -> list[str]:
    rates = spread([nbytes / seconds / GB for seconds in way.overlapped.values() if seconds])
    over = way.over_bound
    return [
        escape(printable(TITLES.get(name, name))),
        f"{nbytes / GB:.2f}",
        "" if rates is None else f"{rates.median:.2f}",
        "" if rates is None else f"{rates.low:.2f}-{rates.high:.2f}" if rates.n > 1 else "1 pass",
        *(_seconds(way.middle(stage)) for stage in stages),
        _seconds(median(way.sum.values()) if way.sum else None),
        _seconds(median(way.overlapped.values()) if way.overlapped else None),
        _seconds(median(way.bound.values()) if way.bound else None),
        "" if over is None else f"{over.median:.2f}",
    ]


def _middle(by_pass: dict[int, float]) -> float:
    return median(by_pass.values()) if by_pass else float("inf")


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
