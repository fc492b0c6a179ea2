"""`coldload loaders`: what can be measured here, with options, and what can't, with its reason."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from loaders.registry import Entry


@click.command(short_help="What can be measured, and what can't here, with the reason.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(as_json: bool) -> None:
    """List every loader: what it reads, options with defaults, and why one can't run here."""
    from loaders import registry  # it takes torch along, and `coldload --help` imports this module

    rows = [describe(entry) for entry in registry.entries().values()]
    if as_json:
        click.echo(json.dumps({"loaders": rows}, indent=2))
        return
    for row in rows:
        click.echo(click.style(row["name"], bold=True))
        if row["summary"] is not None:
            click.echo(f"    {row['summary']}")
            click.echo(f"    {_traits(row)}")
        if row["reason"] is not None:
            click.echo(f"    skipped: {row['reason']}")


def _traits(row: dict[str, Any]) -> str:
    reads = f"reads {', '.join(row['formats'])}" if row["formats"] else "opens no file"
    options = [f"{name}={json.dumps(value)}" for name, value in row["options"].items()]
    if row["threaded"]:
        options.append("--threads")
    return "; ".join([reads, f"{row['ownership']} memory", *options])


def describe(entry: Entry) -> dict[str, Any]:
    """A loader's row: values of JSON only. What a broken one can't tell is null."""
    from loaders.registry import unavailable

    cls = entry.cls
    reason = unavailable(entry)
    return {
        "name": entry.name,
        "available": reason is None,
        "reason": reason,
        "summary": cls.summary if cls else None,
        "formats": sorted(cls.formats) if cls else None,
        "ownership": str(cls.ownership) if cls else None,
        "options": dict(cls.options) if cls else {},
        "variants": [dict(variant) for variant in cls.variants] if cls else [],
        "threaded": cls.threaded if cls else False,
        "synthetic": cls.synthetic if cls else False,
        "requires": list(cls.requires) if cls else [],
    }
