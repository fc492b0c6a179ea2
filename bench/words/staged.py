"""Whether copying the checkpoint to another storage first pays, and from how many loads on. Pure
functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from bench.ground.staging import break_even_loads
from bench.record.records import Run, Sample, measured
from bench.record.summary import Row

Seconds = Mapping[int, float]
"""By pass."""


def staging_pays(run: Run, made: Sequence[Row]) -> list[str]:
    """For each storage that was copied from, and each kind of memory: the best loader there held
    against the same one (or else the best) on the staged copy, and when the copy has paid."""
    copies: dict[tuple[str, str], dict[int, float]] = {}
    for sample in measured(run.samples):
        if sample.phase == "stage" and sample.storage is not None and sample.seconds.total:
            key = sample.storage.label, str(sample.options["to"])
            copies.setdefault(key, {})[sample.pass_number] = sample.seconds.total
    by_case: dict[str, list[Sample]] = {}
    for sample in measured(run.samples):
        by_case.setdefault(sample.case, []).append(sample)
    said = []
    for (source, target), copy in sorted(copies.items()):
        for kind in ("mapped", "borrowed", "owned"):
            here = _ranked(made, source, kind, ("cold", "none"))
            there = _ranked(made, target, kind, ("warm", "cold"))
            if not here or not there:
                continue
            best = here[0]
            same = [row for row in there if (row.title, row.threads) == (best.title, best.threads)]
            other = (same or there)[0]
            sentence = _sentence(copy, _seconds(by_case, best), _seconds(by_case, other))
            if sentence is not None:
                who = f"{best.title} from {source}"
                who += "" if same else f", {other.title} from {target}"
                said.append(f"{who}, {kind}: staging to {target} {sentence}")
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


def _sentence(copy: Seconds, direct: Seconds, staged: Seconds) -> str | None:
    """What the copy takes, what it saves a load, and when it has paid, paired by pass."""
    passes = sorted(copy.keys() & direct.keys() & staged.keys())
    if not passes:
        return None
    takes = f"takes {median(copy[n] for n in passes):.2f} s"
    saved = median(direct[n] - staged[n] for n in passes)
    saves = f"saves {saved:.2f} s a load" if saved > 0 else f"costs {-saved:.2f} s more a load"
    counts = [break_even_loads(copy[n], direct[n], staged[n]) for n in passes]
    known = [count for count in counts if count is not None]
    over = f"in {len(passes)} pass{'es' * (len(passes) > 1)}"
    if not known:
        return f"{takes}, {saves}: never pays here ({over})."
    if len(known) < len(counts):
        return f"{takes}, {saves}: no gain shown (it pays {len(known)} times {over})."
    middle = break_even_loads(
        median(copy[n] for n in passes),
        median(direct[n] for n in passes),
        median(staged[n] for n in passes),
    )
    low, high = min(known), max(known)
    first = middle if middle is not None else high
    bounds = "" if low == high else f" ({low} to {high} {over})"
    return f"{takes}, {saves}: pays from the {_ordinal(first)} load on{bounds}."


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10)
    return f"{number}{ending or 'th'}"
