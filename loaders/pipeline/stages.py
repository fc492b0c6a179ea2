"""What stages that were measured alone say about running them together. Arithmetic; seconds."""

from __future__ import annotations

from collections.abc import Mapping

OVERLAP_GOAL = 1.1
"""Overlapped, the whole should take no more than this times the slowest stage alone."""


def sequential(stages: Mapping[str, float]) -> float:
    """One stage after another: their sum."""
    return sum(stages.values())


def slowest(stages: Mapping[str, float]) -> tuple[str, float]:
    """The stage that bounds the whole however well it overlaps, and its seconds: no pipeline can be
    faster. The first of equals. ValueError without a stage."""
    if not stages:
        raise ValueError("no stage to take the slowest of")
    name = max(stages, key=lambda stage: stages[stage])
    return name, stages[name]


def over_bound(overlapped: float, stages: Mapping[str, float]) -> float | None:
    """How much longer the overlapped whole took than its slowest stage alone: 1.0 is perfect. None
    where no stage took any time."""
    bound = slowest(stages)[1]
    return overlapped / bound if bound > 0 else None


def hidden(overlapped: float, stages: Mapping[str, float]) -> float | None:
    """The part of what could be hidden that was: 1.0 where the whole takes as long as its slowest
    stage, 0.0 where it takes as long as all one after another. Below 0 where overlapping cost more
    than it brought. None where there was nothing to hide."""
    room = sequential(stages) - slowest(stages)[1]
    return (sequential(stages) - overlapped) / room if room > 0 else None
