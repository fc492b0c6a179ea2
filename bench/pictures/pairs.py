"""Two ends and the line between them: cold against warm, the first rank done against the last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.pictures.lines import LEVEL, ROW, label_rows, scale
from bench.pictures.style import (
    GREY,
    INK,
    PAPER,
    TITLE,
    Picture,
    drawing,
    file_name,
    keys,
    panel,
    picture,
    write,
)

HEAD, FOOT = 46.0, 36.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two figures of one thing, what they come to in words, and what lies between them."""

    name: str
    one: float
    other: float
    words: str
    between: Sequence[float] = ()


def pairs_picture(
    pairs: Sequence[Pair],
    *,
    name: str,
    title: str,
    unit: str,
    ends: tuple[tuple[str, str], tuple[str, str]],
) -> Picture | None:
    """A row for each pair, in the given order. `ends` names the two figures and their colours."""
    if not pairs:
        return None
    (first, first_colour), (second, second_colour) = ends
    with drawing(file_name(name), HEAD + FOOT + ROW * len(pairs)) as figure:
        write(figure, title, top=22, size=TITLE, bold=True)
        keys(figure, ends, top=40)
        axes = panel(figure, top=HEAD, height=ROW * len(pairs))
        label_rows(axes, [pair.name for pair in pairs], [pair.words for pair in pairs])
        for number, pair in enumerate(pairs):
            level = number + LEVEL
            axes.plot([pair.one, pair.other], [level] * 2, color=GREY, linewidth=2.2, zorder=1)
            if pair.between:
                axes.scatter(pair.between, [level] * len(pair.between), s=12, color=INK, zorder=2)
            for value, colour, marker in (
                (pair.one, first_colour, "o"),
                (pair.other, second_colour, "D"),
            ):
                axes.scatter(
                    [value],
                    [level],
                    s=52,
                    color=colour,
                    marker=marker,
                    edgecolors=PAPER,
                    linewidths=1.0,
                    zorder=3,
                )
        scale(axes, max(max(pair.one, pair.other) for pair in pairs), unit)
        text = "; ".join(
            f"{pair.name}: {first} {pair.one:.2f} {unit}, {second} {pair.other:.2f} {unit}"
            for pair in pairs
        )
        return picture(figure, name=file_name(name), title=title, text=f"{text}.")
