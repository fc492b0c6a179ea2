"""The answer in words, before any picture: how fast, of how much, and what it means."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from bench.record.records import Run, measured
from bench.record.summary import TOP_OF, Group, Row, ceilings, noise, phases_of, rows
from bench.sizes import format_size
from bench.words.engine_settings import flags_for
from bench.words.findings import SMALL
from bench.words.for_engine import MADE_UP
from bench.words.limits_seen import ABOVE
from bench.words.names import named, phase_words

STOCK = "safetensors-mmap"
"""What vLLM does by itself on a local file system (default_loader, 0.33)."""

EXAMPLE = 100e9
"""Bytes of the checkpoint that stands for a large one in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One figure: what stands large, its unit, what it is."""

    value: str
    unit: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`doubt` is why nothing should be concluded from the run, if so."""

    headline: str
    lead: tuple[str, ...]
    tiles: tuple[Tile, ...]
    doubt: str | None = None


def answer(run: Run) -> Answer:
    """What the run found, in a headline, a few sentences and figures. The run has measured
    something (a ceiling at least)."""
    reading = [row for row in rows(run) if not row.apart and not row.twin]
    lead: list[str] = []
    tiles: list[Tile] = []
    headline = ""
    for best in _bests(reading):
        top = _storage_top(run, best)
        said = _headline(best, top)
        headline = headline or said
        lead += ([] if said == headline else [f"{said}."]) + _meaning(best, reading)
        if said == headline:
            tiles += _tiles(run, best, reading, top)
    for phase in phases_of(run):
        ways = [row for row in rows(run, phase) if not row.twin and _is_way(row)]
        if phase == "disk_to_host" or not ways:
            continue
        said = _phase(phase, ways)
        headline = headline or said
        lead += [] if said == headline else [f"{said}."]
    return Answer(
        headline=headline or _only_ceilings(run),
        lead=tuple(lead),
        tiles=tuple(tiles),
        doubt=_doubt(run),
    )


def answer_words(run: Run) -> list[str]:
    """The answer as it stands in a terminal; empty where nothing was measured."""
    if not measured(run.samples):
        return []
    found = answer(run)
    said = [f"ANSWER: {found.headline}.", *found.lead]
    return said if found.doubt is None else [f"ANSWER: {found.doubt}", f"{found.headline}."]


def _bests(reading: list[Row]) -> list[Row]:
    """The fastest way for each storage in its hardest cache state, the fastest storage first."""
    found: dict[str | None, Row] = {}
    for row in reading:
        before = found.get(row.group.storage)
        if before is None or _rank(row) > _rank(before):
            found[row.group.storage] = row
    return sorted(found.values(), key=lambda row: -row.rate.median)


def _rank(row: Row) -> tuple[int, bool, float]:
    state = {"cold": 3, "none": 2, "warm": 1}.get(row.group.cache, 0)
    # Of made-up values nothing was read: they lead only where nothing else is there.
    return state, row.loader != MADE_UP, row.rate.median


def _storage_top(run: Run, best: Row) -> float | None:
    """What the storage gives cold, whatever memory is read into."""
    if best.group.cache != "cold":
        return None
    group = Group(storage=best.group.storage, cache="cold", ownership="borrowed")
    by_pass = ceilings(run).get(group)
    return median(by_pass.values()) if by_pass else None


def _headline(best: Row, top: float | None) -> str:
    states = {"cold": " cold", "warm": " out of the page cache"}
    state = states.get(best.group.cache, "")
    where = best.group.storage or "memory"
    text = f"From {where}, weights load at {best.rate.median:.2f} GB/s{state}"
    if top is None:
        return text
    share = 100 * best.rate.median / top
    if share > ABOVE:
        return f"{text}, more than this run's ceiling: see the notes"
    return f"{text}, {share:.0f} % of what the storage gives"


def _meaning(best: Row, reading: list[Row]) -> list[str]:
    """Seconds measured, and what a large checkpoint would take at that rate."""
    said = [
        f"Fastest there: {named(best)}, {best.seconds['total']:.2f} s for "
        f"{format_size(best.nbytes)}. At that rate, 100 GB take {_long(best.rate.median)}."
    ]
    stock = _stock(best, reading)
    if stock is not None and stock.title != best.title:
        said.append(
            f"The engine's usual way ({STOCK}) reached {stock.rate.median:.2f} GB/s: 100 GB in "
            f"{_long(stock.rate.median)}."
        )
    theirs = _of_the_engine(best, reading)
    if theirs is not None and theirs is not stock and theirs is not best:
        said.append(
            f"Of what vLLM has, {named(theirs)} is the fastest: {theirs.rate.median:.2f} GB/s, 100 "
            f"GB in {_long(theirs.rate.median)}."
        )
    return said


def _of_the_engine(best: Row, reading: list[Row]) -> Row | None:
    """The fastest way there that can be set in the engine."""
    where = best.group.storage, best.group.cache
    there = [
        row
        for row in reading
        if (row.group.storage, row.group.cache) == where
        and row.loader != MADE_UP
        and flags_for(row.loader, row.options, row.threads or 1) is not None
    ]
    return max(there, key=lambda row: row.rate.median, default=None)


def _long(rate: float) -> str:
    seconds = EXAMPLE / 1e9 / rate
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} minutes"


def _stock(best: Row, reading: list[Row]) -> Row | None:
    where = best.group.storage, best.group.cache
    for row in reading:
        if row.loader == STOCK and (row.group.storage, row.group.cache) == where:
            return row
    return None


def _tiles(run: Run, best: Row, reading: list[Row], top: float | None) -> list[Tile]:
    state = {"cold": "cold, ", "warm": "warm, "}.get(best.group.cache, "")
    tiles = [Tile(value=f"{best.rate.median:.2f}", unit="GB/s", what=f"{state}{named(best)}")]
    stock = _stock(best, reading)
    if stock is not None and stock.title != best.title:
        what = f"{state}the engine's usual way"
        tiles.append(Tile(value=f"{stock.rate.median:.2f}", unit="GB/s", what=what))
    if top is not None:
        tiles.append(Tile(value=f"{top:.2f}", unit="GB/s", what=f"{best.group.storage} can give"))
    warm = [
        row
        for row in reading
        if (row.group.storage, row.group.cache) == (best.group.storage, "warm")
    ]
    if warm and best.group.cache == "cold":
        quick = max(warm, key=lambda row: row.rate.median)
        what = f"warm, {named(quick)}"
        tiles.append(Tile(value=f"{quick.rate.median:.2f}", unit="GB/s", what=what))
    pairs = [pair for row, pair in noise(rows(run)) if row.group.storage == best.group.storage]
    if pairs:
        most = max(abs(pair.median - 1) for pair in pairs)
        what = "noise: one way twice under two names"
        tiles.append(Tile(value=f"{100 * most:.0f}", unit="%", what=what))
    return tiles


def _is_way(row: Row) -> bool:
    """A ceiling is none, a stage alone gets nothing to its place, and a draft model is no rival of
    the main one."""
    if row.loader == TOP_OF.get(row.group.phase) or "part" in row.options:
        return False
    return not row.loader.endswith("-alone")


def _phase(phase: str, ways: list[Row]) -> str:
    best = min(ways, key=lambda row: row.seconds["total"])
    share = ""
    if best.percent is not None and best.percent.median <= ABOVE:
        share = f", {best.percent.median:.0f} % of its ceiling"
    words = phase_words(phase, best.group.device)
    words += "" if best.group.device == "cpu" else f" ({best.group.device})"
    return (
        f"{words[0].upper()}{words[1:]}: {named(best)} is the quickest, "
        f"{best.seconds['total']:.2f} s, {best.rate.median:.2f} GB/s{share}"
    )


def _only_ceilings(run: Run) -> str:
    return "Only ceilings were measured: what this host can do, and no way to load"


def _doubt(run: Run) -> str | None:
    plan = run.plan or {}
    if plan.get("smoke"):
        return "This was a smoke run: its figures mean nothing."
    size = int(plan.get("size") or 0)
    if 0 < size < SMALL:
        return f"{format_size(size)} is too small to say anything: mostly starting up was timed."
    return None
