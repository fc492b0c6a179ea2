"""Where the seconds went: the stages of each way, one after another, as a stacked bar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.pictures.lines import LEVEL, ROW, THICK, label_rows, scale
from bench.pictures.style import (
    BLUE,
    GREEN,
    GREY,
    GRID,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    PINK,
    RED,
    SKY,
    SMALL,
    TITLE,
    YELLOW,
    Picture,
    drawing,
    file_name,
    keys,
    keys_height,
    panel,
    picture,
    write,
)
from bench.record.summary import Group, Row
from bench.words.names import named, place

COLOURS: Mapping[str, str] = {
    "open": GREY,
    "allocate": ORANGE,
    "read": BLUE,
    "consume": SKY,
    "transfer": GREEN,
    "slice": PINK,
    "quantise": RED,
    "layout": YELLOW,
}
REST = "other"
"""What no stage accounts for: the total less the stages, where these didn't overlap."""

HEAD, FOOT = 30.0, 36.0
NOTE = 16.0
OVERLAPPED = "a mark: its stages overlapped, and there it was done"
SEEN = 0.005
"""The share of its bar below which a stage is no key: it couldn't be seen."""


def parts_of(seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds by stage in their order, and what is left of the total. Stages that overlapped sum
    to more than the total: then nothing is left."""
    stages = {name: value for name, value in seconds.items() if name != "total" and value > 0}
    rest = seconds.get("total", 0.0) - sum(stages.values())
    return {**stages, **({REST: rest} if rest > 0 else {})}


def stages_picture(groups: Mapping[Group, Sequence[Row]]) -> Picture | None:
    """All ways of one phase, storage and cache state, the quickest first. None where no way has
    more than one stage."""
    found = [row for members in groups.values() for row in members if not row.apart]
    ways = sorted(found, key=lambda row: row.seconds.get("total", 0.0))
    stacks = [parts_of(row.seconds) for row in ways]
    if not any(len(stack.keys() - {REST}) > 1 for stack in stacks):
        return None
    used = [name for name in _order(stacks) if _seen(name, stacks)]
    first = next(iter(groups))
    title = f"Seconds by stage: {place(first)}"
    name = file_name("stages", place(first))
    totals = [row.seconds.get("total", 0.0) for row in ways]
    marked = [_overlapped(stack, total) for stack, total in zip(stacks, totals, strict=True)]
    legend = HEAD + keys_height(used)
    head = legend + (NOTE if any(marked) else 0.0)
    with drawing(name, head + FOOT + ROW * len(ways)) as figure:
        write(figure, title, top=22, size=TITLE, bold=True)
        keys(figure, [(stage, COLOURS.get(stage, GRID)) for stage in used], top=HEAD + 12)
        if any(marked):
            write(figure, OVERLAPPED, top=legend + 10, size=SMALL, colour=MUTED)
        axes = panel(figure, top=head, height=ROW * len(ways))
        label_rows(axes, [named(row) for row in ways], [_seconds(total) for total in totals])
        for number, (stack, total) in enumerate(zip(stacks, totals, strict=True)):
            left, level = 0.0, number + LEVEL
            for stage, value in stack.items():
                axes.barh(
                    level,
                    value,
                    left=left,
                    height=THICK,
                    color=COLOURS.get(stage, GRID),
                    edgecolor=PAPER,
                    linewidth=0.6,
                )
                left += value
            if marked[number]:
                axes.plot([total] * 2, [level - 0.26, level + 0.26], color=INK, linewidth=1.6)
        scale(axes, max([*totals, *(sum(stack.values()) for stack in stacks)]), "seconds")
        return picture(figure, name=name, title=title, text=_text(ways, stacks))


def _overlapped(stack: Mapping[str, float], total: float) -> bool:
    return sum(stack.values()) > total * 1.02


def _order(stacks: Sequence[Mapping[str, float]]) -> list[str]:
    """Stages in the order of COLOURS, new ones behind them, the rest last."""
    there = dict.fromkeys(name for stack in stacks for name in stack)
    known = [name for name in COLOURS if name in there]
    return [
        *known,
        *(n for n in there if n not in COLOURS and n != REST),
        *([REST] * (REST in there)),
    ]


def _seen(name: str, stacks: Sequence[Mapping[str, float]]) -> bool:
    return any(stack.get(name, 0.0) > SEEN * sum(stack.values()) for stack in stacks)


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 0.1 else f"{1000 * value:.1f} ms"


def _text(ways: Sequence[Row], stacks: Sequence[Mapping[str, float]]) -> str:
    said = []
    for row, stack in zip(ways, stacks, strict=True):
        parts = ", ".join(f"{stage} {_seconds(value)}" for stage, value in stack.items())
        said.append(f"{named(row)}: {_seconds(row.seconds.get('total', 0.0))} ({parts})")
    return "; ".join(said) + "."
