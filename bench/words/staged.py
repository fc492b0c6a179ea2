"""Whether copying the checkpoint to another storage first pays, and from how many loads on. Pure
functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.ground.staging import break_even_loads
from bench.record.records import Run, Sample, measured
from bench.record.summary import Row

Seconds = Mapping[int, float]
"""By pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """One kind of memory: the best way from the storage that was copied from (`here`), the same or
    else the best from the copy (`there`), and seconds by pass of the copy and of both loads."""

    source: str
    target: str
    here: Row
    there: Row
    copy: Seconds
    direct: Seconds
    staged: Seconds

    @property
    def passes(self) -> list[int]:
        """Those that have all three."""
        return sorted(self.copy.keys() & self.direct.keys() & self.staged.keys())

    def loads(self) -> list[int | None]:
        """By pass, from how many loads on the copy has paid; None for never."""
        return [break_even_loads(self.copy[n], self.direct[n], self.staged[n]) for n in self.passes]


def stagings(run: Run, made: Sequence[Row]) -> list[Staged]:
    """For each storage that was copied from, and each kind of memory, what was measured of it."""
    copies: dict[tuple[str, str], dict[int, float]] = {}
    by_case: dict[str, list[Sample]] = {}
    for sample in measured(run.samples):
        by_case.setdefault(sample.case, []).append(sample)
        if sample.phase == "stage" and sample.storage is not None and sample.seconds.total:
            key = sample.storage.label, str(sample.options["to"])
            copies.setdefault(key, {})[sample.pass_number] = sample.seconds.total
    found = []
    for (source, target), copy in sorted(copies.items()):
        for kind in ("mapped", "borrowed", "owned"):
            here = _ranked(made, source, kind, ("cold", "none"))
            there = _ranked(made, target, kind, ("warm", "cold"))
            if not here or not there:
                continue
            best = here[0]
            same = [row for row in there if (row.title, row.threads) == (best.title, best.threads)]
            other = (same or there)[0]
            found.append(
                Staged(
                    source=source,
                    target=target,
                    here=best,
                    there=other,
                    copy=copy,
                    direct=_seconds(by_case, best),
                    staged=_seconds(by_case, other),
                )
            )
    return found


def staging_pays(run: Run, made: Sequence[Row]) -> list[str]:
    """A sentence for each: what the copy takes, what it saves, and when it has paid."""
    said = []
    for one in stagings(run, made):
        sentence = _sentence(one)
        if sentence is not None:
            same = (one.here.title, one.here.threads) == (one.there.title, one.there.threads)
            who = f"{one.here.title} from {one.source}"
            who += "" if same else f", {one.there.title} from {one.target}"
            said.append(f"{who}, {one.here.group.ownership}: staging to {one.target} {sentence}")
    return said


def _ranked(made: Sequence[Row], label: str, kind: str, caches: tuple[str, ...]) -> list[Row]:
    """Rows of a storage, in the first of these cache states that it has, the best first."""
    rows = [
        row
        for row in made
        if row.group.storage == label and row.group.ownership == kind and not row.twin
    ]
    for cache in caches:
        found = [row for row in rows if row.group.cache == cache and not row.apart]
        if found:
            return sorted(found, key=lambda row: -row.rate.median)
    return []


def _seconds(by_case: Mapping[str, list[Sample]], row: Row) -> Seconds:
    return {
        sample.pass_number: sample.seconds.total
        for sample in by_case.get(row.case, [])
        if sample.seconds.total and sample.cache.state in (row.state, "unverified")
    }


def _sentence(one: Staged) -> str | None:
    passes, counts = one.passes, one.loads()
    if not passes:
        return None
    copy, direct, staged = one.copy, one.direct, one.staged
    takes = f"takes {median(copy[n] for n in passes):.2f} s"
    saved = median(direct[n] - staged[n] for n in passes)
    saves = f"saves {saved:.2f} s a load" if saved > 0 else f"costs {-saved:.2f} s more a load"
    known = [count for count in counts if count is not None]
    over = f"in {len(passes)} pass{'es' * (len(passes) > 1)}"
    if not known:
        return f"{takes}, {saves}: never pays here ({over})."
    if len(known) < len(counts):
        return f"{takes}, {saves}: no gain shown (it pays {len(known)} times {over})."
    low, high = min(known), max(known)
    bounds = "" if low == high else f" ({low} to {high} {over})"
    return f"{takes}, {saves}: pays from the {ordinal(first_load(one))} load on{bounds}."


def first_load(one: Staged) -> int:
    """The load with which the copy has paid, by the medians; of a pair that always pays."""
    passes = one.passes
    middle = break_even_loads(
        median(one.copy[n] for n in passes),
        median(one.direct[n] for n in passes),
        median(one.staged[n] for n in passes),
    )
    return max(count or 1 for count in one.loads()) if middle is None else middle


def ordinal(number: int) -> str:
    """`1st`, `12th`."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10)
    return f"{number}{ending or 'th'}"
