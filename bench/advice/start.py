"""What advice comes to in a start of the engine whose log was explained."""

from __future__ import annotations

from dataclasses import dataclass

from bench.advice.contract import Advice


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Of a start: seconds that the weights took, and of the whole; None where the log has none."""

    weights: float | None
    wall: float | None

    def bound(self) -> str:
        """What no advice on loading can go beyond."""
        if self.weights is None:
            return "The log has no time for the weights: what advice comes to there can't be told."
        if not self.wall:
            return f"In the log the weights took {self.weights:.1f} s: no advice saves more."
        share = 100 * self.weights / self.wall
        return (
            f"In the log the weights took {self.weights:.1f} s of {self.wall:.1f} s: nothing that "
            f"is done about loading saves more than {share:.0f} % of that start."
        )

    def seconds(self, advice: Advice) -> float | None:
        """The share that the run saw saved, of the weights' seconds in the log; None without."""
        if self.weights is None or advice.saving is None or not advice.saving.of:
            return None
        return self.weights * min(1.0, advice.saving.seconds / advice.saving.of)
