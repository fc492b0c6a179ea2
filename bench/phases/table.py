"""The phases of a run, in the order in which weights go through them."""

from __future__ import annotations

from collections.abc import Mapping

from bench.phases.assemble import ASSEMBLE
from bench.phases.contract import Phase
from bench.phases.host_to_device import HOST_TO_DEVICE
from bench.phases.layout import LAYOUT
from bench.phases.quantise import QUANTISE
from bench.phases.ranks import RANKS
from bench.phases.slicing import SLICE
from bench.phases.stage import STAGE
from bench.phases.w8a8 import W8A8

_IN_ORDER: tuple[Phase, ...] = (
    STAGE,
    HOST_TO_DEVICE,
    SLICE,
    QUANTISE,
    LAYOUT,
    ASSEMBLE,
    W8A8,
    RANKS,
)

PHASES: Mapping[str, Phase] = {phase.name: phase for phase in _IN_ORDER}
