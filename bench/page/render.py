"""Sections as one HTML file that needs nothing else, or as Markdown with its pictures beside it.

Every name in a report comes from a stranger: a file, a tensor, a loader's error. HTML is escaped by
Jinja2, Markdown by `escaped`; nothing is marked as safe but what this package made itself.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from bench.page.sections import Section
from bench.pictures.album import Album
from bench.pictures.style import Picture
from bench.sizes import format_size
from loaders.checkpoint.text import printable

TEMPLATES = Path(__file__).parent / "templates"
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|!~$&])")


class Plain(str):
    """Text that is Markdown already."""


def html(found: Sequence[Section], across: Album, records: Sequence[bytes]) -> str:
    """The page. `records` are each run's lines as they lie in its file."""
    style = (TEMPLATES / "report.css").read_text()
    script = (TEMPLATES / "sort.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        title=f"coldload: {found[0].answer.headline}" if len(found) == 1 else "coldload: runs",
        style=Markup(style),
        script=Markup(script),
        script_hash=f"sha256-{digest}",
        sections=[_with_records(one, raw) for one, raw in zip(found, records, strict=True)],
        across=[_inline(picture) for picture in across],
        version=_version(),
    )


def _shown(value: object) -> object:
    """What a page wouldn't show as itself is written out; what this package made stays as it is."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _with_records(one: Section, raw: bytes) -> dict[str, Any]:
    packed = gzip.compress(raw, mtime=0)
    return {
        **{name: getattr(one, name) for name in one.__slots__},
        "pictures": [_inline(picture) for picture in one.pictures],
        "download": f"data:application/gzip;base64,{base64.b64encode(packed).decode()}",
        "download_size": format_size(len(packed)),
        "file_name": f"coldload-{re.sub(r'[^A-Za-z0-9.-]+', '-', one.name)}.jsonl.gz",
    }


def _inline(picture: Picture) -> dict[str, Any]:
    return {**asdict(picture), "svg": Markup(picture.svg)}


def markdown(found: Sequence[Section], across: Album, prefix: str) -> str:
    """The same for a README or an issue; pictures are named as `picture_file` names them."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=False,
        finalize=escaped,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(code=code, plain=Plain)
    text = environment.get_template("report.md.j2").render(
        sections=[
            {
                **{name: getattr(one, name) for name in one.__slots__},
                "pictures": [_named(picture, prefix) for picture in one.pictures],
            }
            for one in found
        ],
        across=[_named(picture, prefix) for picture in across],
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def picture_file(picture: Picture, prefix: str) -> str:
    """`report-rate-nvme-cold.svg` beside `report.md`."""
    return f"{prefix}-{picture.name}.svg"


def _named(picture: Picture, prefix: str) -> dict[str, Any]:
    return {
        "title": picture.title,
        "text": picture.text,
        "file": Plain(picture_file(picture, prefix).replace(" ", "%20").replace(")", "%29")),
    }


def escaped(value: object) -> str:
    """Text that stands in Markdown as it is, on one line: no markup, no HTML, no new cell."""
    if isinstance(value, Plain):
        return value
    return _MARKDOWN.sub(r"\\\1", printable(str(value)))


def code(value: object) -> Plain:
    """Text in as many backticks as it takes."""
    text = printable(str(value))
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    room = " " if longest else ""
    return Plain(f"{fence}{room}{text}{room}{fence}")


def _version() -> str:
    try:
        return version("coldload")
    except PackageNotFoundError:
        return "(from a checkout)"
