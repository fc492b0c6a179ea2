"""The timeline as a picture: one bar for each stage, where it lies in the start."""

from __future__ import annotations

from collections.abc import Mapping

from bench.explain.timeline import CAPTURE, POOL, PROFILING, SERVER, START, WEIGHTS, Timeline
from bench.pictures.lines import LEVEL, ROW, THICK, label_rows, scale
from bench.pictures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    SKY,
    TITLE,
    YELLOW,
    Picture,
    drawing,
    panel,
    picture,
    write,
)

_COLOURS: Mapping[str, str] = {
    START: GREY, "download": ORANGE, WEIGHTS: BLUE, PROFILING: GREEN, POOL: SKY, CAPTURE: PINK,
    SERVER: YELLOW,
}  # fmt: skip
_HEAD, _FOOT = 34.0, 36.0


def plot(times: Timeline, title: str) -> Picture:
    """A picture of the stages that add up, one after another; ValueError if there is none."""
    stages = [stage for stage in times.stages if stage.within is None]
    if not stages:
        raise ValueError("no stage has a time: nothing to draw")
    bars = [(stage.name, stage.seconds) for stage in stages]
    if times.unexplained and times.unexplained > 0:
        bars.append(("no line explains", times.unexplained))
    values = [
        f"{seconds:.1f} s" + (f", {seconds / times.wall:.0%}" if times.wall else "")
        for _, seconds in bars
    ]
    words = "; ".join(f"{name} {value}" for (name, _), value in zip(bars, values, strict=True))
    with drawing("timeline", _HEAD + _FOOT + ROW * len(bars)) as figure:
        write(figure, title, top=22, size=TITLE, bold=True)
        axes = panel(figure, top=_HEAD, height=ROW * len(bars))
        label_rows(axes, [name for name, _ in bars], values)
        left = 0.0
        for number, (name, seconds) in enumerate(bars):
            axes.barh(
                number + LEVEL, seconds, left=left, height=THICK, color=_COLOURS.get(name, GREY)
            )
            left += seconds
        scale(axes, max(left, times.wall or 0.0), "seconds")
        return picture(figure, name="timeline", title=title, text=f"{words}.")
