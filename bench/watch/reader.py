"""The engine's lines on their way into the cold-start record of `coldload explain`."""

from __future__ import annotations

from bench.explain.build import build
from bench.explain.lines import Block
from bench.explain.parse import fold
from bench.explain.record import ColdStart
from bench.explain.state import State


class Reader:
    """Fed with whole lines and the time at which they arrived."""

    def __init__(self) -> None:
        self.state = State()
        self.lines = 0

    def feed(self, data: bytes, arrived: float) -> None:
        """Whole lines (the last one may lack its end). Never raises, whatever they hold."""
        if data:
            fold(self.state, Block(data=data, before=self.lines, arrived=arrived))
            self.lines += data.count(b"\n")

    def record(self) -> ColdStart:
        return build(self.state)
