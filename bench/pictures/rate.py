"""Rate by loader: a bar to the median, every pass as a dot, the ceiling as a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from bench.pictures.lines import LEVEL, ROW, THICK, label_rows, scale
from bench.pictures.style import (
    BLUE,
    INK,
    MUTED,
    PAPER,
    RED,
    SMALL,
    TITLE,
    Picture,
    drawing,
    file_name,
    panel,
    picture,
    write,
)
from bench.record.summary import ByPass, Group, Row, ceiling_for
from bench.words.names import memory_words, named, place

HEAD, BETWEEN, FOOT = 46.0, 30.0, 36.0
READING = "bar: median; dots: each pass; right: GB/s, % of ceiling"


def rate_picture(
    groups: Mapping[Group, Sequence[Row]], tops: Mapping[Group, ByPass]
) -> Picture | None:
    """The groups of one phase, storage and cache state, one below the other on one scale: each
    kind of memory has its own ceiling. None where nothing was measured as asked."""
    shown = {
        group: [row for row in members if not row.apart]
        for group, members in groups.items()
        if any(not row.apart for row in members)
    }
    if not shown:
        return None
    lines = {group: _ceiling(group, members, tops) for group, members in shown.items()}
    most = max(
        [*(row.rate.high for members in shown.values() for row in members)]
        + [top for top in lines.values() if top is not None]
    )
    first, last = next(iter(shown)), list(shown)[-1]
    title = f"Rate: {place(first)}"
    name = file_name("rate", place(first))
    height = HEAD + FOOT + sum(BETWEEN + ROW * len(members) for members in shown.values())
    with drawing(name, height) as figure:
        write(figure, title, top=22, size=TITLE, bold=True)
        write(figure, READING, top=40, size=SMALL, colour=MUTED)
        top = HEAD
        for group, members in shown.items():
            write(figure, memory_words(group), top=top + 18, colour=MUTED)
            ceiling = lines[group]
            if ceiling is not None:
                words = f"ceiling {ceiling:.2f}"
                write(figure, words, top=top + 18, right=True, size=SMALL, colour=RED)
            top += BETWEEN
            axes = panel(figure, top=top, height=ROW * len(members))
            label_rows(axes, [named(row) for row in members], [_value(row) for row in members])
            for number, row in enumerate(members):
                level = number + LEVEL
                axes.barh(level, row.rate.median, height=THICK, color=BLUE)
                axes.scatter(
                    list(row.rates.values()),
                    [level] * len(row.rates),
                    s=20,
                    color=INK,
                    edgecolors=PAPER,
                    linewidths=0.8,
                    zorder=3,
                )
            if ceiling is not None:  # beside each bar, so that no name is struck through
                levels = [number + LEVEL for number in range(len(members))]
                above, below = ([level + d for level in levels] for d in (-0.26, 0.26))
                axes.vlines([ceiling] * len(levels), above, below, color=RED, linewidth=2.2)
            scale(axes, most, "GB/s" if group == last else None)
            top += ROW * len(members)
        return picture(figure, name=name, title=title, text=_text(shown, lines))


def _ceiling(group: Group, members: Sequence[Row], tops: Mapping[Group, ByPass]) -> float | None:
    by_pass = ceiling_for(group, tops)
    return median(by_pass.values()) if by_pass and members else None


def _value(row: Row) -> str:
    share = "" if row.percent is None else f", {row.percent.median:.0f} %"
    return f"{row.rate.median:.2f}{share}"


def _text(shown: Mapping[Group, Sequence[Row]], lines: Mapping[Group, float | None]) -> str:
    parts = []
    for group, members in shown.items():
        ceiling = lines[group]
        top = "no ceiling measured" if ceiling is None else f"ceiling {ceiling:.2f} GB/s"
        bars = "; ".join(
            f"{named(row)} {row.rate.median:.2f} GB/s"
            + (f" ({row.rate.low:.2f} to {row.rate.high:.2f})" if row.rate.n > 1 else "")
            for row in members
        )
        parts.append(f"Into {memory_words(group)}, {top}: {bars}.")
    return " ".join(parts)
