"""A limit for CI: `read slower 10%` fails where that stage takes more than 10 % longer. Pure.

A gate fails only on what is shown: beyond the limit by the median, and a difference by a rank test.
What is beyond the limit and isn't shown is undecided, neither passed nor failed: then the passes
can't tell, and it says how many could. What is smaller than the clocks agree is no difference.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bench.compare.cases import TOO_FEW, Cases, Compared, Timed
from bench.record.summary import STAGES

CLOCKS_SECONDS, CLOCKS_SHARE = 0.002, 0.01
"""Within which the child's clock and the runner's may differ, of the total: see benchmarks.md."""

_GATE = re.compile(r"\s*([a-z0-9_]+)\s+(slower|faster)\s+(\d+(?:\.\d+)?)\s*%\s*")


class GateError(ValueError):
    """A limit that isn't one, or that names what isn't there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """`what` is a stage (`read`, `total`, ...) or a phase (`disk_to_host`), whose total is meant.
    Slower by 10 %: the time is 1.1 times the other; faster by 10 %: the rate is."""

    what: str
    direction: Literal["slower", "faster"]
    percent: float

    @property
    def text(self) -> str:
        """As it was given, in one spelling."""
        return f"{self.what} {self.direction} {self.percent:g}%"


def parse_gate(text: str) -> Gate:
    """A limit such as `read slower 10%`. GateError for what is none."""
    found = _GATE.fullmatch(text)
    if found is None:
        raise GateError(
            f"--fail-if {text!r}: expected a stage or phase, slower or faster, and a percentage, "
            f"as in 'read slower 10%'"
        )
    direction: Literal["slower", "faster"] = "slower" if found[2] == "slower" else "faster"
    return Gate(what=found[1], direction=direction, percent=float(found[3]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a gate found, a sentence with figures for each case: `breaches` are shown, or failed on
    side b; `undecided` are beyond the limit in passes that can't tell."""

    breaches: tuple[str, ...]
    undecided: tuple[str, ...]


def judge(gate: Gate, cases: Cases) -> Judged:
    """Both empty where the gate holds. GateError where no case has that stage or phase."""
    measured = _meant(gate, cases.both)
    failed = [
        f"{one.name}: failed on the second side: {one.reason}"
        for one in cases.failed
        if gate.what in STAGES or gate.what == one.phase
    ]
    if not measured and not failed:
        stages = {stage for one in cases.both for stage in one.stages}
        there = [*(name for name in STAGES if name in stages), *_phases(cases.both)]
        raise GateError(
            f"--fail-if {gate.text!r}: no case that both have has {gate.what}; they have "
            f"{', '.join(there)}"
        )
    beyond = [(one, timed) for one, timed in measured if _beyond(gate, one, timed)]
    shown = [_figures(one, timed) for one, timed in beyond if timed.verdict == gate.direction]
    return Judged(
        breaches=(*failed, *shown),
        undecided=tuple(
            f"{_figures(one, timed)}: {_why(timed)}"
            for one, timed in beyond
            if timed.verdict != gate.direction
        ),
    )


def _figures(one: Compared, timed: Timed) -> str:
    return (
        f"{one.title} ({one.where}): {timed.stage} {timed.a.median:.3f} s, then "
        f"{timed.b.median:.3f} s, {timed.ratio.median:.2f} x ({timed.ratio.low:.2f} to "
        f"{timed.ratio.high:.2f}, {timed.ratio.kind})"
    )


def _why(timed: Timed) -> str:
    have = f"{timed.a.n} and {timed.b.n} passes"
    if timed.verdict == TOO_FEW:
        return f"{have} can show no difference, it takes {timed.needed} (--passes={timed.needed})"
    if timed.needed is None:
        return f"not shown by {have}, and more that come as these did wouldn't soon"
    return f"not shown by {have}; if more come as these did, it takes about {timed.needed}"


def _meant(gate: Gate, both: Sequence[Compared]) -> list[tuple[Compared, Timed]]:
    """A stage of all ways to load; ceilings are the host's, and are meant only by their name."""
    if gate.what in STAGES:
        return [
            (one, one.stages[gate.what])
            for one in both
            if gate.what in one.stages and one.phase != "ceiling"
        ]
    return [(one, one.stages["total"]) for one in both if one.phase == gate.what]


def _phases(both: Sequence[Compared]) -> list[str]:
    return list(dict.fromkeys(one.phase for one in both))


def _beyond(gate: Gate, one: Compared, timed: Timed) -> bool:
    """Whether the medians are further apart than the limit, and than the clocks agree."""
    factor = 1 + gate.percent / 100
    ratio = timed.b.median / timed.a.median
    if (ratio <= factor) if gate.direction == "slower" else (ratio >= 1 / factor):
        return False
    whole = one.stages["total"].a.median
    return abs(timed.b.median - timed.a.median) >= max(CLOCKS_SECONDS, CLOCKS_SHARE * whole)
