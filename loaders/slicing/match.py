"""Per card or total? Which ways to divide a model predict a figure of "weights took N GB"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from loaders.slicing.errors import PlanError
from loaders.slicing.placement import Placement, Remainder
from loaders.slicing.plan import Degrees
from loaders.slicing.sizes import Counted, RankBytes, rank_bytes

TOLERANCE: Final = 0.03  # of the figure: buffers, scales held wider, rounding of the engine's print
_MOST_RANKS: Final = 128
Meaning = Literal["per worker", "whole model", "neither"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """What `degrees` predict for one worker: the nearest of its pipeline stages and expert shares
    (`predicted` bytes), all of them (`least` to `most`), and how far the nearest is off
    (`deviation`, (predicted - given) / given)."""

    degrees: Degrees
    predicted: int
    least: int
    most: int
    deviation: float


def matches(
    counted: Counted,
    given: int,
    *,
    placement: Placement = "linear",
    remainder: Remainder = "spread",
) -> tuple[Match, ...]:
    """Every way to divide the model over up to 128 ranks that its engine takes, the nearest to
    `given` bytes first; of equals, the fewest ranks and then the fewest kinds of parallelism.

    tp, pp and dp are powers of two; dp only where there are experts, since it changes nothing
    else; ep off or on. ValueError unless given > 0.
    """
    if given <= 0:
        raise ValueError(f"given: expected more than 0 bytes, got {given}")
    found: list[Match] = []
    for degrees in candidates(counted):
        try:
            sizes = sorted(
                one.weights for one in distinct_ranks(counted, degrees, placement, remainder)
            )
        except PlanError:
            continue  # an engine refuses these
        nearest = min(sizes, key=lambda size: abs(size - given))
        found.append(
            Match(
                degrees=degrees,
                predicted=nearest,
                least=sizes[0],
                most=sizes[-1],
                deviation=(nearest - given) / given,
            )
        )
    # To a thousandth: what is nearer than that says nothing about which it was.
    return tuple(sorted(found, key=lambda one: (round(abs(one.deviation), 3), _effort(one))))


def _effort(match: Match) -> tuple[int, int, float]:
    one = match.degrees
    kinds = sum(value > 1 for value in (one.tp, one.pp, one.dp, one.ep))
    return one.world, kinds, abs(match.deviation)


def candidates(counted: Counted) -> Iterator[Degrees]:
    """The degrees that are tried."""
    powers = [1 << power for power in range(_MOST_RANKS.bit_length())]
    layers, experts = counted.model.facts.layers or 1, counted.model.experts
    for pp in (power for power in powers if power <= min(layers, 16)):
        for dp in powers if experts else [1]:
            for tp in powers:
                ways = dp * tp
                if pp * ways > _MOST_RANKS or dp > 32:
                    continue
                yield Degrees(tp=tp, pp=pp, dp=dp)
                if experts and ways > 1:
                    yield Degrees(tp=tp, pp=pp, dp=dp, ep=ways)


def distinct_ranks(
    counted: Counted, degrees: Degrees, placement: Placement, remainder: Remainder
) -> Iterator[RankBytes]:
    """Of every stage, the ranks that can differ in size: the first and the last tp rank (padding
    of the vocabulary, remainder of the experts) of the first and the last dp rank."""
    ends = {0, degrees.tp - 1}
    for dp in sorted({0, degrees.dp - 1}):
        for pp in range(degrees.pp):
            for tp in sorted(ends):
                rank = (dp * degrees.pp + pp) * degrees.tp + tp
                yield rank_bytes(counted, degrees, rank, placement=placement, remainder=remainder)


def meaning(given: int, ranks: tuple[RankBytes, ...]) -> Meaning:
    """What `given` bytes are, if the model is divided as `ranks` are: one worker's weights, those
    of the whole model, or neither, within TOLERANCE."""
    per_worker = [one.weights for one in ranks]
    if any(abs(size - given) <= TOLERANCE * given for size in per_worker):
        return "per worker"
    first = [one for one in ranks if one.place.dp == 0]
    whole = (sum(one.weights for one in first), ranks[0].read_all, sum(per_worker))
    if any(abs(size - given) <= TOLERANCE * given for size in whole):
        return "whole model"
    return "neither"
