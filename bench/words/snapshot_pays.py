"""Whether a snapshot pays: what it saves each start, what making it cost, from which start on, and
what no snapshot can beat. Pure functions on records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from bench.record.records import Run, measured
from bench.record.summary import GB, Group, Row, ceilings, rows
from bench.sizes import format_size
from bench.words.phrases import threads

LOADER = "snapshot"
KEPT = "restored"
"""The way of that name in the phases that assemble."""

WHOLE = "parameters"
"""What the ways of the phase assemble are `into` that end with what a snapshot holds."""

Seconds = Mapping[int, float]
"""By pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pays:
    """`restore` and `other` are seconds a start, medians over the `passes` that both have; `saved`
    their difference, paired by pass, with its `low` and `high`. `starts`: from which start on the
    snapshot has paid, None for never. `bound` is the least that reading its bytes takes, None where
    no ceiling was measured."""

    restore: float
    other: float
    saved: float
    low: float
    high: float
    passes: int
    cost: float
    starts: int | None
    disk_bytes: int
    bound: float | None


def pays(
    restore: Seconds, other: Seconds, *, cost: float, disk_bytes: int, ceiling: Seconds
) -> Pays | None:
    """What the figures say: seconds a start by pass, `cost` in seconds, once, and `ceiling` the
    storage's direct rate by pass in GB/s. None without a pass that both have."""
    both = sorted(restore.keys() & other.keys())
    if not both:
        return None
    differences = [other[number] - restore[number] for number in both]
    saved = median(differences)
    top = median(ceiling.values()) if ceiling else 0.0
    return Pays(
        restore=median(restore[number] for number in both),
        other=median(other[number] for number in both),
        saved=saved,
        low=min(differences),
        high=max(differences),
        passes=len(both),
        cost=cost,
        starts=break_even(cost, saved),
        disk_bytes=disk_bytes,
        bound=disk_bytes / GB / top if top > 0 else None,
    )


def break_even(cost: float, saved: float) -> int | None:
    """The first start with which `cost` seconds, paid once, are won back at `saved` seconds each;
    None for never."""
    if saved <= 0:
        return None
    return max(1, math.ceil(cost / saved))


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A snapshot that was restored cold, the fastest other way to the same, seconds of both by
    pass, and what the figures say."""

    row: Row
    other: Row
    restore: Seconds
    instead: Seconds
    pays: Pays


def restored(run: Run, made: Sequence[Row]) -> list[Restored]:
    """For each storage where a snapshot was restored cold: against assembling where the run
    measured that, else against the best loader of the checkpoint itself."""
    tops = ceilings(run)
    all_found = []
    for row in made:
        if row.loader != LOADER or row.group.cache != "cold" or row.apart or row.twin:
            continue
        told = _told(run, row)
        other = _assembled(run, row) or _loaded(made, row)
        if told is None or other is None:
            continue
        cost, disk_bytes = told
        ring = Group(storage=row.group.storage, cache="cold", ownership="borrowed")
        mine, instead = _seconds(row), _seconds(other)
        found = pays(mine, instead, cost=cost, disk_bytes=disk_bytes, ceiling=tops.get(ring, {}))
        if found is not None:
            all_found.append(
                Restored(row=row, other=other, restore=mine, instead=instead, pays=found)
            )
    for phase in ("assemble", "w8a8"):
        all_found += _in_phase(run, phase, tops)
    return all_found


def _in_phase(run: Run, phase: str, tops: Mapping[Group, Seconds]) -> list[Restored]:
    """A restored state among the ways of a phase that come to the same parameters, against the
    fastest of those."""
    cold = [row for row in rows(run, phase) if row.group.cache == "cold" and not row.apart]
    all_found = []
    for row in cold:
        others = [one for one in cold if one.loader != KEPT and _same(one, row)]
        other = min(others, key=_middle, default=None)
        told = _told(run, row)
        if row.loader != KEPT or told is None or other is None:
            continue
        ring = Group(storage=row.group.storage, cache="cold", ownership="borrowed")
        mine, instead, ceiling = _seconds(row), _seconds(other), tops.get(ring, {})
        found = pays(mine, instead, cost=told[0], disk_bytes=told[1], ceiling=ceiling)
        if found is not None:
            all_found.append(
                Restored(row=row, other=other, restore=mine, instead=instead, pays=found)
            )
    return all_found


def _same(one: Row, other: Row) -> bool:
    """Whether both end with the same parameters, on the same device."""
    return all(one.options.get(key) == other.options.get(key) for key in ("into", "part")) and (
        replace(one.group, ownership="") == replace(other.group, ownership="")
    )


def snapshot_pays(run: Run, made: Sequence[Row]) -> list[str]:
    """One sentence for each snapshot that was restored cold."""
    return [_sentence(one.row, one.other, one.pays) for one in restored(run, made)]


def _told(run: Run, row: Row) -> tuple[float, int] | None:
    """(seconds that making it took, bytes on disk), as the loader told with its samples."""
    for sample in measured(run.samples):
        counts = sample.details.get("counts", {})
        if sample.case == row.case and "made_ms" in counts:
            return counts["made_ms"] / 1000, int(counts["file_bytes"])
    return None


def _assembled(run: Run, row: Row) -> Row | None:
    """The fastest assembly of the same share of the model, from the same storage, cold."""
    found = [
        one
        for one in rows(run, "assemble")
        if one.group.storage == row.group.storage
        and one.group.cache == "cold"
        and one.group.layout == row.group.layout
        and one.options.get("into") == WHOLE
        and "part" not in one.options  # a draft model is no share of this one
        and one.loader != KEPT
        and not one.apart
    ]
    return min(found, key=_middle, default=None)


def _loaded(made: Sequence[Row], row: Row) -> Row | None:
    """The fastest other loader on the same storage, cold."""
    found = [
        one
        for one in made
        if one.group.storage == row.group.storage
        and one.group.cache == "cold"
        and one.loader != LOADER
        and not one.apart
        and not one.twin
    ]
    return min(found, key=_middle, default=None)


def _middle(row: Row) -> float:
    return median(_seconds(row).values())


def _seconds(row: Row) -> Seconds:
    return {number: row.nbytes / GB / rate for number, rate in row.rates.items() if rate > 0}


def _kept(row: Row) -> str:
    """`the state of tp8, int8 and scales in nz`."""
    group = row.group
    more = f", int8 and scales in {row.options.get('into')}" if group.phase == "w8a8" else ""
    where_to = "" if group.device == "cpu" else f", to {group.device}"
    return f"the state of {group.layout}{more}{where_to}"


def _sentence(row: Row, other: Row, found: Pays) -> str:
    who = f"{other.title}{threads(other.threads)}"
    loads = other.group.phase == "disk_to_host"
    what = "loading" if loads else "assembling"
    more = ", which only reads and assembles nothing" if loads else ""
    whose = "the snapshot" if row.loader == LOADER else _kept(row)
    over = f"{found.low:+.3f} to {found.high:+.3f} s over {found.passes} pass"
    over += "es" * (found.passes > 1)
    differs = f"{abs(found.saved):.3f} s {'less' if found.saved > 0 else 'more'}"
    if found.starts is None:
        when = "it never pays"
    elif found.low <= 0:
        when = "no gain is shown"
    else:
        when = f"it pays from start {found.starts} on"
    text = (
        f"{row.group.storage}: restoring {whose} takes {found.restore:.3f} s, {differs} than "
        f"{what} by {who}{more} (saves {over}); made once in {found.cost:.1f} s, on "
        f"{format_size(found.disk_bytes)} of disk: {when}."
    )
    if found.bound is not None:
        text += (
            f" It can't be restored faster than its bytes are read: {found.bound:.3f} s here, "
            f"{100 * found.bound / found.restore:.0f} % of what it takes."
        )
    return text
