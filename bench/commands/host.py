"""`coldload host`: what this machine is, and what lies below a path."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape

from bench.host.facts import host_facts
from bench.sizes import format_size
from loaders.checkpoint.text import printable
from loaders.store.address import is_address, masked

_WIDTH = 26


class UnreadableError(click.ClickException):
    """A path that can't be looked at."""

    exit_code = 2


@click.command(short_help="This machine, and what lies below a path.")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(paths: tuple[str, ...], as_json: bool) -> None:
    """Show what this host is: processor, memory, limits, accelerators, and for each PATH (the
    current folder if none is given) its file system, mount and disk.

    Only what /proc and /sys say; what they don't say is null. With --json, a PATH that can't be
    looked at (exit code 2) leaves {"error": why} alone.
    """
    wanted = {path: Path(path) for path in paths or (".",)}
    try:
        for text, path in wanted.items():
            if is_address(text):
                raise UnreadableError(f"{masked(text)}: expected a path here, found an address")
            _check(path)
    except UnreadableError as error:
        if as_json:
            click.echo(json.dumps({"error": error.message}))
        raise
    facts = host_facts(wanted)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    console = Console(highlight=False, soft_wrap=True, emoji=False)
    for line in _lines(facts):
        console.print(line)


def _check(path: Path) -> None:
    try:
        path.stat()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in it
        reason = getattr(error, "strerror", None) or error
        raise UnreadableError(printable(f"can't look at {path}: {reason}")) from error


def _lines(facts: Mapping[str, object]) -> Iterator[str]:
    """The facts as lines of rich markup: plain values first, then a section for each group."""
    groups: list[tuple[str, object]] = []
    for name, value in facts.items():
        if isinstance(value, Mapping) or (isinstance(value, list) and value):
            groups.append((name, value))
        else:
            yield _line(name, value, 0)
    for name, value in groups:
        yield ""
        yield f"[bold]{escape(_title(name))}[/bold]"
        yield from _nested(value, 1)


def _nested(value: object, depth: int) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if _is_plain(inner):
                yield _line(name, inner, depth)
            else:
                yield f"{'  ' * depth}{escape(_title(name))}"
                yield from _nested(inner, depth + 1)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for inner in value:
            if isinstance(inner, Mapping):
                yield f"{'  ' * depth}-"
            yield from _nested(inner, depth + 1 if isinstance(inner, Mapping) else depth)
    else:
        yield f"{'  ' * depth}{escape(_shown('', value))}"


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return not any(isinstance(inner, Mapping | list) for inner in value)
    return not isinstance(value, Mapping)


def _line(name: str, value: object, depth: int) -> str:
    label = f"{'  ' * depth}{_title(name)}"
    return escape(f"{label:<{_WIDTH}} {_shown(name, value)}")


def _title(name: str) -> str:
    words = name.removesuffix("_bytes") if name.endswith("_bytes") else name
    return printable(words.replace("_", " "))


def _shown(name: str, value: object) -> str:
    """A value for people: sizes with their unit, unknown ones as "-"."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_shown("", inner) for inner in value) or "none"
    if isinstance(value, int) and (name.endswith("_bytes") or name in {"limit", "used"}):
        return format_size(value)
    return printable(str(value))
