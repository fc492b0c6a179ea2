"""Rows of bars: a line of words above each bar, so that long names need no margin."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from bench.pictures.style import BODY, GRID, INK, MUTED, SMALL, short

ROW = 34.0
"""Pixels from bar to bar."""

THICK = 0.36
LEVEL = 0.24
"""Where a bar's middle lies below its row's, in rows."""


def label_rows(axes: Axes, names: Sequence[str], values: Sequence[str]) -> None:
    """Each row's name on the left and what it came to on the right, above its bar; row 0 on top."""
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks([])
    across = axes.get_yaxis_transform()
    for number, (name, value) in enumerate(zip(names, values, strict=True)):
        where = number - 0.08
        axes.text(
            0, where, short(name), transform=across, size=BODY, color=INK, va="baseline", ha="left"
        )
        axes.text(
            1, where, value, transform=across, size=SMALL, color=MUTED, va="baseline", ha="right"
        )


def scale(axes: Axes, most: float, unit: str | None) -> None:
    """From 0 to a little over `most`; ticks and unit where `unit` is given, else a bare grid."""
    axes.set_xlim(0, most * 1.03 or 1)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    if unit is None:
        axes.tick_params(labelbottom=False)
    else:
        axes.set_xlabel(unit, loc="right", labelpad=2)
        # `0`, not `0.000`, whose half would stand beyond the margin.
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.6g}")
