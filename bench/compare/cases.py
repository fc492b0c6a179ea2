"""Case by case: how long it took on either side, and whether a difference is shown. Pure.

Passes of one run are paired, because both sides stood in the same minute; passes of two runs are
not. Only samples in the same verified cache state are compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from bench.given import Given
from bench.record.records import Run, Sample, measured
from bench.record.significance import (
    LEVEL,
    could_show,
    paired_p,
    passes_needed,
    passes_to_show,
    unpaired_p,
)
from bench.record.stats import Ratio, Spread, paired_ratio, spread, unpaired_ratio
from bench.record.summary import STAGES, ByPass, title_of
from bench.words.names import threads

Key = tuple[str, ...]
TOO_FEW = "too few passes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One stage of one case, in seconds on both sides. `ratio` is b's time over a's: above 1, b is
    slower. `verdict` is "slower", "faster", "no difference shown" or "too few passes". `needed`:
    from how many passes on either side any difference could be shown; where there are so many and
    none is shown, how many would show this one, if they came as these did (None beyond
    MOST_PASSES, or where there is none)."""

    stage: str
    a: Spread
    b: Spread
    ratio: Ratio
    paired: bool
    p: float
    verdict: str
    needed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A case that both sides have. `where` is its storage and cache state."""

    key: Key
    phase: str
    title: str
    where: str
    stages: Mapping[str, Timed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A case that was measured on side a, and failed on side b."""

    phase: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """What both sides have, what only one has, and what failed on side b alone."""

    both: tuple[Compared, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    failed: tuple[Failed, ...] = ()


def compare_cases(a: Given, b: Given) -> Cases:
    """Storages count as the same where either was asked for by its label."""
    apart = a.label is None and b.label is None
    paired = a.run.path.resolve() == b.run.path.resolve()
    left, right = (_by_key(one.run, apart) for one in (a, b))
    if paired and not apart:  # what reads no storage is the same sample on both sides
        left, right = ({k: v for k, v in side.items() if v[0].storage} for side in (left, right))
    both = [_compared(key, left[key], right[key], paired=paired) for key in left if key in right]
    both = sorted((one for one in both if "total" in one.stages), key=_order)
    return Cases(
        both=tuple(both),
        only_a=tuple(_name(left[key][0]) for key in left if key not in right),
        only_b=tuple(_name(right[key][0]) for key in right if key not in left),
        failed=tuple(_failed(left, b.run, apart)),
    )


def _order(one: Compared) -> tuple[bool, str, str, float]:
    """Ceilings last, then by place, the quickest of the first side first."""
    return one.phase == "ceiling", one.phase, one.where, one.stages["total"].a.median


def _by_key(run: Run, apart: bool) -> dict[Key, list[Sample]]:
    found: dict[Key, list[Sample]] = {}
    for sample in measured(run.settled()):
        if sample.seconds.total and sample.loader != "nothing":
            found.setdefault((*_case(sample, apart), sample.cache.state), []).append(sample)
    return found


def _case(sample: Sample, apart: bool) -> Key:
    """What makes a case, without its storage if storages are to be compared."""
    return (
        sample.phase,
        sample.loader,
        json.dumps(sample.options, sort_keys=True, default=str),
        sample.model,
        str(sample.size),
        sample.dtype,
        str(sample.threads),
        sample.cache.requested,
        sample.device,
        sample.layout,
        sample.storage.label if apart and sample.storage else "",
    )


def _name(sample: Sample) -> str:
    return f"{_title(sample)} ({_where(sample)})"


def _title(sample: Sample) -> str:
    title = title_of(sample)
    return title if sample.threads is None else f"{title}, {threads(sample.threads)}"


def _where(sample: Sample) -> str:
    label = sample.storage.label if sample.storage else "memory"
    states = [sample.cache.requested]
    if sample.cache.state not in {sample.cache.requested, "none"}:
        states.append(f"was {sample.cache.state}")
    return ", ".join([label, *(state for state in states if state != "none")])


def _compared(key: Key, a: list[Sample], b: list[Sample], *, paired: bool) -> Compared:
    first = a[0]
    stages = {}
    for stage in STAGES:
        timed = _timed(stage, _seconds(a, stage), _seconds(b, stage), paired=paired)
        if timed is not None:
            stages[stage] = timed
    return Compared(
        key=key,
        phase=first.phase,
        title=_title(first),
        where=_where(first),
        stages=stages,
    )


def _seconds(samples: list[Sample], stage: str) -> ByPass:
    values = {sample.pass_number: getattr(sample.seconds, stage) for sample in samples}
    return {number: value for number, value in values.items() if value}


def _timed(stage: str, a: ByPass, b: ByPass, *, paired: bool) -> Timed | None:
    if paired:
        shared = sorted(a.keys() & b.keys())
        a, b = ({number: side[number] for number in shared} for side in (a, b))
    one, other = list(a.values()), list(b.values())
    ratio = paired_ratio(b, a) if paired else unpaired_ratio(other, one)
    before, after = spread(one), spread(other)
    if ratio is None or before is None or after is None:
        return None
    if paired:
        differences = [b[number] - a[number] for number in a]
        able = could_show(len(a))

        def p_of(times: int) -> float:
            return paired_p(differences * times)
    else:
        able = could_show(len(one), len(other))

        def p_of(times: int) -> float:
            return unpaired_p(one * times, other * times)

    p = p_of(1)
    needed = None
    if not able:
        verdict, needed = TOO_FEW, passes_needed(paired=paired)
    elif p <= LEVEL:
        verdict = "slower" if median(other) > median(one) else "faster"
    else:
        verdict, needed = "no difference shown", passes_to_show(p_of, min(len(one), len(other)))
    return Timed(
        stage=stage,
        a=before,
        b=after,
        ratio=ratio,
        paired=paired,
        p=p,
        verdict=verdict,
        needed=needed,
    )


def _failed(left: Mapping[Key, list[Sample]], run: Run, apart: bool) -> list[Failed]:
    there = {key[:-1]: samples[0] for key, samples in left.items()}
    found: dict[Key, Failed] = {}
    for sample in run.settled():
        key = _case(sample, apart)
        if sample.status == "failed" and key in there:
            found[key] = Failed(
                phase=sample.phase,
                name=_name(there[key]),
                reason=sample.reason or "no reason recorded",
            )
    return list(found.values())
