"""Per card or total? The answer in words to a figure of "Loading model weights took N GB"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from loaders.slicing.engines import Engine
from loaders.slicing.match import TOLERANCE, Match, Meaning, meaning
from loaders.slicing.placement import Placement
from loaders.slicing.plan import Degrees
from loaders.slicing.sizes import Counted, RankBytes, all_ranks

GIB: Final = 1 << 30


def per_card(
    given: int,
    counted: Counted,
    stated: tuple[RankBytes, ...] | None,
    found: Sequence[Match],
    placement: Placement,
    engine: Engine,
) -> dict[str, Any]:
    """What `given` bytes are. `stated` are the ranks of the degrees that the user gave, None if he
    gave none: then the best of `found` stands for them."""
    best = found[0]
    degrees = best.degrees if stated is None else _degrees(stated)
    ranks = stated or all_ranks(counted, degrees, placement=placement, remainder=engine.remainder)
    what: Meaning
    if stated is not None:
        what = meaning(given, stated)
    elif abs(best.deviation) > TOLERANCE:
        what = "neither"
    else:
        what = "per worker" if degrees.world > 1 else "whole model"
    nearest = min((one.weights for one in ranks), key=lambda size: abs(size - given))
    return {
        "given_bytes": given,
        "meaning": what,
        "predicted_bytes": nearest,
        "total_bytes": sum(one.weights for one in ranks),
        "deviation": (nearest - given) / given,
        "verdict": _verdict(what, given, nearest, degrees, ranks, best, stated is not None),
    }


def _degrees(ranks: tuple[RankBytes, ...]) -> Degrees:
    places = [one.place for one in ranks]
    tp, pp, dp = (1 + max(getattr(one, name) for one in places) for name in ("tp", "pp", "dp"))
    return Degrees(tp=tp, pp=pp, dp=dp, ep=1 if ranks[0].experts is None else tp * dp)


def _verdict(
    what: Meaning,
    given: int,
    nearest: int,
    degrees: Degrees,
    ranks: tuple[RankBytes, ...],
    best: Match,
    stated: bool,
) -> str:
    """One or two sentences. Engines print GB or GiB, mean 2^30 bytes, and print it for each worker
    by itself; nothing they print is a sum."""
    figure = f"{given / GIB:.4f} GB (2^30 bytes)"
    fit = f"predicted {nearest / GIB:.4f}, {abs(nearest - given) / given:.1%} off"
    total = sum(one.weights for one in ranks)
    if what == "per worker" and degrees.world > 1:
        return (
            f"Per card: {figure} is what one worker of {words(degrees)} holds ({fit}). The "
            f"{degrees.world} workers together hold {total / GIB:.2f}, which no engine prints."
        )
    if what == "per worker" or (what == "whole model" and degrees.world == 1):
        return (
            f"Per card, and total: {figure} is the whole model in one worker ({fit}). If there are "
            "more workers, each of them holds all of it."
        )
    if what == "whole model":
        return (
            f"Total: {figure} is the whole model; one worker of {words(degrees)} would hold "
            f"{nearest / GIB:.4f}. Engines print one worker's, so that worker was not divided so."
        )
    near = f"{words(best.degrees)} comes nearest, {best.predicted / GIB:.4f} per worker"
    near += f" ({abs(best.deviation):.1%} off)"
    if stated:
        return (
            f"Neither: one worker of {words(degrees)} would hold {nearest / GIB:.4f}, all of them "
            f"{total / GIB:.2f}; {figure} is none of these. {near[0].upper()}{near[1:]}."
        )
    return (
        f"Neither: no way to divide this checkpoint gives one worker {figure} within "
        f"{TOLERANCE:.0%}; {near}. Another dtype, or another checkpoint?"
    )


def words(degrees: Degrees) -> str:
    """The degrees above 1: "tp 8, ep 8", or "one rank"."""
    named = {"tp": degrees.tp, "pp": degrees.pp, "dp": degrees.dp, "ep": degrees.ep}
    return ", ".join(f"{name} {value}" for name, value in named.items() if value > 1) or "one rank"
