"""Rate against one thing that varied: threads, the checkpoint's size, how much was cached."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from bench.pictures.style import (
    GRID,
    LINES,
    MARKERS,
    PAPER,
    SMALL,
    TITLE,
    Picture,
    drawing,
    keys,
    keys_height,
    panel,
    picture,
    short,
    write,
)

HEAD, PLOT, FOOT = 30.0, 200.0, 40.0
MOST = len(LINES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What varied, and the GB/s of each pass there."""

    at: float
    rates: Sequence[float]


Lines = Mapping[str, Sequence[Point]]


def curve_picture(
    lines: Lines,
    *,
    name: str,
    title: str,
    unit: str,
    tick: Callable[[float], str],
    doubling: bool = False,
) -> Picture | None:
    """Lines by name, the fastest first, at most MOST of them. `tick` writes a place on the axis,
    which has a doubling scale if asked. None where no line has two points."""
    ranked = sorted(
        ((line, _sorted(points)) for line, points in lines.items() if len(points) > 1),
        key=lambda one: -max(median(point.rates) for point in one[1]),
    )
    chosen = ranked[:MOST]
    if not chosen:
        return None
    labels = [short(line, 48) for line, _ in chosen]
    colours = [(label, LINES[number]) for number, label in enumerate(labels)]
    head = HEAD + keys_height(labels) + 8
    with drawing(name, head + PLOT + FOOT) as figure:
        write(figure, title, top=22, size=TITLE, bold=True)
        keys(figure, colours, top=HEAD + 12)
        axes = panel(figure, top=head, height=PLOT, left=44)
        for number, (_, points) in enumerate(chosen):
            _line(axes, points, number)
        _axes(axes, [points for _, points in chosen], unit, tick, doubling)
        text = _text(chosen, tick)
        if len(ranked) > MOST:
            text += f" {len(ranked) - MOST} slower ones are left out of the picture."
        return picture(figure, name=name, title=title, text=text)


def _sorted(points: Sequence[Point]) -> list[Point]:
    return sorted(points, key=lambda point: point.at)


def _line(axes: Axes, points: Sequence[Point], number: int) -> None:
    colour, marker = LINES[number], MARKERS[number]
    where = [point.at for point in points]
    axes.vlines(
        where,
        [min(point.rates) for point in points],
        [max(point.rates) for point in points],
        color=colour,
        linewidth=1.0,
    )
    axes.plot(
        where,
        [median(point.rates) for point in points],
        color=colour,
        marker=marker,
        markersize=6,
        markeredgecolor=PAPER,
        linewidth=1.8,
    )


def _axes(
    axes: Axes,
    lines: Sequence[Sequence[Point]],
    unit: str,
    tick: Callable[[float], str],
    doubling: bool,
) -> None:
    places = sorted({point.at for points in lines for point in points})
    if doubling:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(_apart(places, doubling))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    axes.set_ylim(0, 1.08 * max(rate for points in lines for p in points for rate in p.rates))
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_xlabel(unit, loc="right", labelpad=2)
    axes.set_ylabel("GB/s", loc="top", size=SMALL)


def _apart(places: Sequence[float], doubling: bool) -> list[float]:
    """Those whose words don't run into the one before: an eighth of the axis is enough."""
    if doubling or len(places) < 9:
        return list(places)
    least = (places[-1] - places[0]) / 8
    kept = [places[0]]
    for at in places[1:]:
        if at - kept[-1] >= least:
            kept.append(at)
    return kept


def _text(chosen: Sequence[tuple[str, Sequence[Point]]], tick: Callable[[float], str]) -> str:
    said = [
        f"{line}: "
        + ", ".join(f"{tick(point.at)} {median(point.rates):.2f} GB/s" for point in points)
        for line, points in chosen
    ]
    return "; ".join(said) + "."
