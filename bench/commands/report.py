"""`coldload report`: a run, or several, as one page to look at, as Markdown, or as pictures.

With --json the document is {report, pictures, lost}: the file that was written (null with
--pictures alone), the pictures' files, and what of the runs couldn't be read; or {error}.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import click

from bench.console import steps_bar
from bench.given import Given, losses, read_given
from bench.page.render import html, markdown, picture_file
from bench.page.sections import Section, sections
from bench.pictures.album import Album
from bench.record.records import RECORDS, RecordsError, measured
from loaders.checkpoint.text import count, printable
from loaders.store.address import is_address, masked

DEFAULT = "report.html"
KINDS = (".html", ".htm", ".md")


@click.command("report", short_help="Runs as one HTML page, as Markdown, or as pictures.")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("-o", "--output", help=f"A .html or .md file [default: {DEFAULT}].")
@click.option("--pictures", help="A folder for the pictures, as SVG files.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.pass_context
def command(
    ctx: click.Context,
    runs: tuple[str, ...],
    output: str | None,
    pictures: str | None,
    as_json: bool,
) -> None:
    """RUN is a run's folder, or FOLDER:label for one storage of it. With several, each is told for
    itself, and what needs several (rate by size) is drawn across them.

    The page needs no network and holds the raw records; Markdown has its pictures beside it. A
    report that is there already is written anew. With --pictures alone, no report is written.

    Exit codes: 0 done, 2 a RUN can't be read or a file can't be written, 3 nothing was measured.
    """
    try:
        if pictures is not None:
            _refuse_address(pictures)
        target = None if output is None and pictures is not None else _target(output or DEFAULT)
        given = [read_given(run) for run in runs]
        empty = [one for one in given if not measured(one.run.samples)]
        if empty:
            where = empty[0].run.path
            _fail(ctx, as_json, 3, f"{where}: nothing was measured; coldload runs says why")
            return
        with steps_bar("drawing the pictures") as progress:
            found, across = sections([one.run for one in given], progress)
        folder = Path(pictures) if pictures is not None else None
        written = _write(given, found, across, target, folder)
    except RecordsError as error:
        _fail(ctx, as_json, 2, str(error))
        return
    except OSError as error:
        place = error.filename or output or pictures
        _fail(ctx, as_json, 2, f"{place}: {error.strerror}; name another file or folder")
        return
    lost = [said for one in given if (said := losses(one.run)) is not None]
    if as_json:
        click.echo(json.dumps({**written, "lost": lost}))
        return
    for loss in lost:
        click.echo(printable(loss), err=True)
    if written["report"]:
        click.echo(printable(f"{written['report']}: open it in a browser or an editor"))
    for folder in dict.fromkeys(Path(file).parent for file in written["pictures"]):
        beside = [file for file in written["pictures"] if Path(file).parent == folder]
        click.echo(printable(f"{count(len(beside), 'picture')} in {folder}"))


def _target(text: str) -> Path:
    _refuse_address(text)
    path = Path(text)
    if path.suffix.lower() not in KINDS:
        raise RecordsError(f"{text}: expected a name that ends in .html or .md")
    if path.is_dir():
        raise RecordsError(f"{text}: is a folder; name a file")
    if not path.parent.is_dir():
        raise RecordsError(f"{text}: there is no folder {path.parent}; make it, or name another")
    return path


def _refuse_address(text: str) -> None:
    if is_address(text):
        raise RecordsError(f"{masked(text)}: expected a place on this host, found an address")


def _write(
    given: list[Given],
    found: list[Section],
    across: Album,
    target: Path | None,
    folder: Path | None,
) -> dict[str, Any]:
    drawn = [picture for one in found for picture in one.pictures] + across
    files: list[str] = []
    if target is not None and target.suffix.lower() == ".md":
        files += _write_pictures(drawn, target.parent, prefix=target.stem)
        _replace(target, markdown(found, across, target.stem))
    elif target is not None:
        _replace(target, html(found, across, [_lines(one) for one in given]))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        files += _write_pictures(drawn, folder)
    return {"report": None if target is None else str(target), "pictures": files}


def _write_pictures(drawn: Album, folder: Path, prefix: str | None = None) -> list[str]:
    files = []
    for picture in drawn:
        name = f"{picture.name}.svg" if prefix is None else picture_file(picture, prefix)
        _replace(folder / name, picture.svg)
        files.append(str(folder / name))
    return files


def _replace(path: Path, text: str) -> None:
    """Whole or not at all: a report that somebody looks at is never half of one."""
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:99]}.", suffix="~")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        umask = os.umask(0)
        os.umask(umask)
        Path(partial).chmod(0o666 & ~umask)
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def _lines(one: Given) -> bytes:
    path = one.run.path
    return (path / RECORDS if path.is_dir() else path).read_bytes()


def _fail(ctx: click.Context, as_json: bool, code: int, text: str) -> None:
    if as_json:
        click.echo(json.dumps({"error": text}))
    else:
        click.echo(printable(text), err=True)
    ctx.exit(code)
