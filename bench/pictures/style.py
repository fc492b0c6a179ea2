"""How every picture looks: one width, one type size, colours that colour-blind people can tell
apart, light and dark, and what makes an SVG readable without seeing it.

Colours are Okabe and Ito's ("Color Universal Design", 2008), with grey. matplotlib draws the light
ones; a style sheet inside the SVG replaces each by its dark partner where the reader's screen is
dark, so that a file works in a page, alone, in a README and in print.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loaders.checkpoint.text import printable

WIDTH = 420
"""Pixels: as wide as a phone, so that letters stay legible there; a page puts two side by side."""

MARGIN = 12
BODY, SMALL, TITLE = 11.0, 10.0, 13.0
LONGEST_NAME, LONGEST_LINE = 44, 60

INK, MUTED, GRID, PAPER = "#1f2329", "#5d6570", "#dfe3e8", "#fdfdfe"
BLUE, ORANGE, GREEN, RED = "#0072b2", "#e69f00", "#009e73", "#d55e00"
SKY, PINK, YELLOW, GREY = "#56b4e9", "#cc79a7", "#d9c400", "#9aa2ac"
LINES = (BLUE, ORANGE, GREEN, RED, PINK, SKY, GREY, YELLOW)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")

DARK = {
    INK: "#e8ebef",
    MUTED: "#a0a8b3",
    GRID: "#373d45",
    PAPER: "#14171b",
    BLUE: "#4ba3dd",
    ORANGE: "#e6a61f",
    GREEN: "#27b88b",
    RED: "#f07a33",
    SKY: "#8fd0f5",
    PINK: "#d98fb8",
    YELLOW: "#e5d545",
    GREY: "#79818b",
}
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",  # matplotlib's own, for measuring; the reader's is put in after
    "font.size": BODY,
    "text.color": INK,
    "text.parse_math": False,  # a stranger's name may hold a dollar
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.labelsize": SMALL,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """`name` is fit for a file, `text` says in words what the picture shows, `svg` is a whole
    document that begins with its `<svg>` element."""

    name: str
    title: str
    text: str
    svg: str


@contextmanager
def drawing(name: str, height: float) -> Iterator[Figure]:
    """An empty picture WIDTH x `height` pixels, with the project's settings while it is drawn."""
    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": name}), warnings.catch_warnings():
        # Names in letters that the measuring font lacks; the reader's own fonts show them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield Figure(figsize=(WIDTH / 72, height / 72), dpi=72)


def panel(figure: Figure, *, top: float, height: float, left: float = MARGIN) -> Axes:
    """Axes from `left` to the right margin, `top` pixels below the picture's upper edge."""
    whole = figure.get_figheight() * 72
    area = (left / WIDTH, 1 - (top + height) / whole, (WIDTH - left - MARGIN) / WIDTH)
    axes = figure.add_axes((*area, height / whole), facecolor="none")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    axes.set_axisbelow(True)
    return axes


def write(
    figure: Figure,
    text: str,
    *,
    top: float,
    right: bool = False,
    size: float = BODY,
    colour: str = INK,
    bold: bool = False,
) -> None:
    """A line of text at a margin, its baseline `top` pixels below the upper edge."""
    whole = figure.get_figheight() * 72
    figure.text(
        1 - MARGIN / WIDTH if right else MARGIN / WIDTH,
        1 - top / whole,
        short(text, LONGEST_LINE),
        size=size,
        color=colour,
        weight="bold" if bold else "normal",
        ha="right" if right else "left",
        va="baseline",
    )


def keys(figure: Figure, names: Sequence[tuple[str, str]], *, top: float) -> float:
    """Colour keys (name, colour) in lines from `top` on; how many pixels they took."""
    whole, x, line = figure.get_figheight() * 72, float(MARGIN), 0
    for name, colour in ((short(name, LONGEST_LINE), colour) for name, colour in names):
        needed = 18 + 6.3 * len(name)
        if x + needed > WIDTH - MARGIN and x > MARGIN:
            x, line = float(MARGIN), line + 1
        y = 1 - (top + 16 * line) / whole
        figure.text(x / WIDTH, y, "\N{BLACK SQUARE}", color=colour, size=BODY, va="baseline")
        figure.text((x + 12) / WIDTH, y, name, color=MUTED, size=SMALL, va="baseline")
        x += needed
    return 16.0 * (line + 1)


def keys_height(names: Sequence[str]) -> float:
    """What `keys` will take, for the picture's height must be known before."""
    x, line = float(MARGIN), 0
    for name in names:
        needed = 18 + 6.3 * len(name)
        if x + needed > WIDTH - MARGIN and x > MARGIN:
            x, line = float(MARGIN), line + 1
        x += needed
    return 16.0 * (line + 1)


def short(name: str, most: int = LONGEST_NAME) -> str:
    """A name as it fits on a line; the tables have it whole."""
    text = printable(name)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def file_name(*parts: str) -> str:
    """Parts joined so that any file system and any address takes them."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")[:80] or "picture"


def picture(figure: Figure, *, name: str, title: str, text: str) -> Picture:
    """The figure as SVG: the same text for the same values, without date or version."""
    out = io.StringIO()
    about = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(out, format="svg", transparent=True, metadata=about)
    return Picture(name=name, title=title, text=text, svg=_dress(out.getvalue(), name, title, text))


def _dress(svg: str, name: str, title: str, text: str) -> str:
    """matplotlib's document as one element for a page: ids of its own, its text alternative, the
    reader's fonts, the dark colours."""
    svg = re.sub(r"<!--.*?-->\n?", "", svg[svg.index("<svg") :].strip(), flags=re.S)
    svg = re.sub(r'\b(id|href)="(#?)([^"]+)"', rf'\1="\2{name}-\3"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = svg.replace("'DejaVu Sans'", FONTS)
    head, body = svg.split(">", 1)
    view = re.search(r'viewBox="[^"]+"', head)
    assert view is not None
    width, height = view[0].split('"')[1].split()[2:]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'class="coldload" role="img" aria-labelledby="{name}-title {name}-desc" '
        f'width="{width}" height="{height}" {view[0]}>\n'
        f'<title id="{name}-title">{escape(printable(title))}</title>\n'
        f'<desc id="{name}-desc">{escape(printable(text))}</desc>\n'
        f"<style>{_dark()}</style>{body}\n"
    )


def _dark() -> str:
    rules = "".join(
        f'.coldload [style*="{what}: {light}"]{{{what}:{dark}!important}}'
        for light, dark in DARK.items()
        for what in ("fill", "stroke")
    )
    return f"@media screen and (prefers-color-scheme: dark){{{rules}}}"
