"""Tables as values: what stands in a cell, what it sorts by. HTML and Markdown show the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.record.records import Run, Sample, measured
from bench.record.stats import Spread, spread
from bench.record.summary import (
    STAGES,
    ByPass,
    Group,
    Row,
    ceilings,
    phases_of,
    rate_of,
    rows,
    simulated,
    title_of,
)
from bench.words.limits_seen import limit
from bench.words.names import phase_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """`sort` is the figure behind the text; None sorts by the text."""

    text: str
    sort: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """`figures` says of each column whether it holds figures."""

    title: str
    columns: tuple[str, ...]
    figures: tuple[bool, ...]
    rows: tuple[tuple[Cell, ...], ...]


EMPTY = Cell(text="")
Show = Callable[[Row], Cell]


def _figure(value: float | None, form: str) -> Cell:
    return EMPTY if value is None else Cell(text=form.format(value), sort=value)


def _range(found: Spread) -> Cell:
    text = f"{found.low:.2f} to {found.high:.2f}" if found.n > 1 else "1 pass"
    return Cell(text=text, sort=found.high - found.low)


def _stage(name: str) -> Show:
    return lambda row: _figure(row.seconds.get(name), "{:.3f}")


COLUMNS: tuple[tuple[str, bool, Show], ...] = (
    ("way", False, lambda row: Cell(text=row.title)),
    ("storage", False, lambda row: Cell(text=row.group.storage or "")),
    ("cache asked", False, lambda row: Cell(text=_cache(row.group.cache))),
    ("was", False, lambda row: Cell(text=_cache(row.state))),
    ("memory", False, lambda row: Cell(text=row.group.ownership)),
    ("device", False, lambda row: Cell(text=row.group.device)),
    ("share", False, lambda row: Cell(text=row.group.layout)),
    ("threads", True, lambda row: _figure(row.threads, "{:.0f}")),
    ("GB/s", True, lambda row: _figure(row.rate.median, "{:.2f}")),
    ("range", True, lambda row: _range(row.rate)),
    ("passes", True, lambda row: _figure(row.rate.n, "{:.0f}")),
    ("% of ceiling", True, lambda row: _figure(_share(row), "{:.0f}")),
    *((f"{name} s", True, _stage(name)) for name in STAGES),
    ("CPU s/GB", True, lambda row: _figure(row.cpu_per_gb, "{:.2f}")),
    ("minor faults", True, lambda row: _figure(row.minor_faults, "{:,.0f}")),
    ("major faults", True, lambda row: _figure(row.major_faults, "{:,.0f}")),
    ("peak MiB", True, lambda row: _figure(_mib(row.peak_bytes), "{:,.0f}")),
)
SAME_FOR_ALL = {"device": "cpu", "share": "tp1"}
"""Columns that stand only where a row says something else."""


def _cache(state: str) -> str:
    return "" if state == "none" else state


def _share(row: Row) -> float | None:
    return None if row.percent is None else row.percent.median


def _mib(nbytes: float | None) -> float | None:
    return None if nbytes is None else nbytes / 2**20


def tables(run: Run) -> list[Table]:
    """One table for each phase that was measured, then the ceilings."""
    tops = ceilings(run)
    cores = run.cores
    made = [phase_table(phase, rows(run, phase), tops, cores) for phase in phases_of(run)]
    return [table for table in (*made, ceiling_table(run)) if table.rows]


def phase_table(phase: str, members: Sequence[Row], tops: dict[Group, ByPass], cores: int) -> Table:
    """All ways of a phase. A column in which nothing stands is left out."""
    columns = list(COLUMNS)
    if phase == "disk_to_host":
        said = ("limited by", False, lambda row: Cell(text=limit(row, tops, cores)))
        columns.append(said)
    shown = [
        (title, figures, cells)
        for title, figures, show in columns
        if _says_something(title, cells := [show(row) for row in members])
    ]
    devices = {row.group.device for row in members}
    words = phase_words(phase, *(devices if len(devices) == 1 else ()))
    if any(simulated(row.group) for row in members):
        words += " (simulated device: no figures of hardware)"
    return Table(
        title=words[0].upper() + words[1:],
        columns=tuple(title for title, _, _ in shown),
        figures=tuple(figures for _, figures, _ in shown),
        rows=tuple(zip(*(cells for _, _, cells in shown), strict=True)),
    )


def _says_something(title: str, cells: Sequence[Cell]) -> bool:
    return any(cell.text not in {"", SAME_FOR_ALL.get(title)} for cell in cells)


def ceiling_table(run: Run) -> Table:
    """What the hardware gave, by reader."""
    by_case: dict[str, list[Sample]] = {}
    for sample in measured(run.samples):
        if sample.phase == "ceiling" and rate_of(sample) is not None:
            by_case.setdefault(sample.case, []).append(sample)
    made = []
    for samples in by_case.values():
        first = samples[0]
        found = spread([rate for sample in samples if (rate := rate_of(sample)) is not None])
        assert found is not None
        made.append(
            (
                Cell(text=title_of(first)),
                Cell(text=first.storage.label if first.storage else "memory"),
                Cell(text=_cache(first.cache.requested)),
                _figure(found.median, "{:.2f}"),
                _range(found),
                _figure(found.n, "{:.0f}"),
            )
        )
    made.sort(key=lambda row: [cell.text for cell in row[1:3]] + [row[0].text])
    return Table(
        title="Ceilings",
        columns=("reader", "storage", "cache", "GB/s", "range", "passes"),
        figures=(False, False, False, True, True, True),
        rows=tuple(made),
    )
