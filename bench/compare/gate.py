"""A limit for CI: `read slower 10%` fails where that stage takes more than 10 % longer. Pure.

A gate fails on what the passes can bear out: a difference that a rank test shows, or, where there
are too few passes for any test, one in which every pass of one side is beyond every pass of the
other. What is smaller than the clocks agree is no difference.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bench.compare.cases import Cases, Compared, Timed
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
        return f"{self.what} {self.direction} {self.percent:g}%"


def parse_gate(text: str) -> Gate:
    found = _GATE.fullmatch(text)
    if found is None:
        raise GateError(
            f"--fail-if {text!r}: expected a stage or phase, slower or faster, and a percentage, "
            f"as in 'read slower 10%'"
        )
    direction: Literal["slower", "faster"] = "slower" if found[2] == "slower" else "faster"
    return Gate(what=found[1], direction=direction, percent=float(found[3]))


def breaches(gate: Gate, cases: Cases) -> list[str]:
    """The cases beyond the limit, each with its figures, and those that failed on side b; empty
    where the gate holds. GateError where no case has that stage or phase."""
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
    return failed + [
        f"{one.title} ({one.where}): {timed.stage} {timed.a.median:.3f} s, then "
        f"{timed.b.median:.3f} s, {timed.ratio.median:.2f} x ({timed.ratio.low:.2f} to "
        f"{timed.ratio.high:.2f}, {timed.ratio.kind})"
        for one, timed in measured
        if _beyond(gate, one, timed)
    ]


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
    factor = 1 + gate.percent / 100
    ratio = timed.b.median / timed.a.median
    if (ratio <= factor) if gate.direction == "slower" else (ratio >= 1 / factor):
        return False
    whole = one.stages["total"].a.median
    if abs(timed.b.median - timed.a.median) < max(CLOCKS_SECONDS, CLOCKS_SHARE * whole):
        return False
    return timed.verdict == gate.direction or (timed.verdict == "too few passes" and timed.apart)
