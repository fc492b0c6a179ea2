"""The phases of a run, in the order in which weights go through them."""

from __future__ import annotations

from collections.abc import Mapping

from bench.phases.contract import Phase

_IN_ORDER: tuple[Phase, ...] = ()

PHASES: Mapping[str, Phase] = {phase.name: phase for phase in _IN_ORDER}
