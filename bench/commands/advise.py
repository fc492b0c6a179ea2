"""`coldload advise`: what to change, from what a run recorded.

The JSON document:
    run        the records it was made from
    engine     "vllm-0.33": for which version the flags hold
    company    signs that the host wasn't alone, each a sentence
    findings   a list of {name, title, seen, do, cost, saving}; saving is null or {seconds, of, low,
               high, passes, bounds, at_most}: seconds for the bytes of the run
    error      why there is nothing (exits 2 and 3), else absent
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Any

import click
from rich.markup import escape

from bench.advice.company import flags
from bench.advice.contract import Advice, Saving
from bench.advice.findings import advise, saving_words
from bench.console import console
from bench.engine_settings import NEWEST, Version, version_of
from bench.given import losses, read_given
from bench.records import RecordsError, Run, measured
from loaders.checkpoint.text import printable

ENGINE = f"vllm-{'.'.join(map(str, NEWEST))}"
_ENGINE = re.compile(r"vllm-(\d+(?:\.\d+){1,3})")


@click.command("advise", short_help="Say what to change, by seconds saved, from a run's records.")
@click.argument("run")
@click.option("--for", "engine", default=ENGINE, show_default=True, help="The engine to set up.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.pass_context
def command(ctx: click.Context, run: str, engine: str, as_json: bool) -> None:
    """RUN is a run's folder, or FOLDER:label for one storage of it.

    At most seven findings, those first that save most. Each has its figures, what to type, what it
    would save with bounds, and what it costs; nothing is said without evidence in the records.

    Exit codes: 0 done, 2 RUN can't be read, 3 nothing was measured in it.
    """
    try:
        version = _version(engine)
        given = read_given(run)
    except (RecordsError, ValueError) as error:
        _fail(ctx, as_json, 2, str(error))
        return
    if not measured(given.run.samples):
        _fail(ctx, as_json, 3, f"{given.run.path}: nothing was measured; coldload runs says why")
        return
    found, company = advise(given.run, version), flags(given.run)
    if (lost := losses(given.run)) is not None:
        click.echo(printable(lost), err=True)
    if as_json:
        click.echo(json.dumps(document(given.run, engine, found, company)))
    else:
        _show(found, company)


def _version(engine: str) -> Version:
    found = _ENGINE.fullmatch(engine)
    if found is None:
        raise ValueError(f"--for {printable(engine)}: not known; expected one such as {ENGINE}")
    version = version_of(found[1])
    if version[: len(NEWEST)] > NEWEST:
        raise ValueError(
            f"--for {engine}: what is known of vLLM ends at {ENGINE}; take that, and check the "
            f"flags with vllm serve --help"
        )
    return version


def document(run: Run, engine: str, found: list[Advice], company: list[str]) -> dict[str, Any]:
    return {
        "run": str(run.path),
        "engine": engine,
        "company": company,
        "findings": [{**asdict(one), "saving": _saving(one.saving)} for one in found],
    }


def _saving(saved: Saving | None) -> dict[str, Any] | None:
    if saved is None:
        return None
    body = asdict(saved)
    return {"passes": body.pop("n"), "bounds": body.pop("kind"), **body}


def _show(found: list[Advice], company: list[str]) -> None:
    out = console()
    for sentence in company:
        out.print(f"[yellow]Not alone:[/yellow] {_safe(sentence)}")
    if not found:
        out.print(
            "Nothing to advise: no change is shown by this run to save seconds. More passes "
            "(--passes=8), more loaders or --cache=both may show one."
        )
    for number, one in enumerate(found, start=1):
        out.print(f"\n[bold]{number}. {_safe(one.title)}[/bold]: {saving_words(one.saving)}")
        out.print(f"   {_safe(one.seen)}")
        for line in one.do:
            out.print(f"   [green]>[/green] {_safe(line)}")
        out.print(f"   Costs: {_safe(one.cost)}")


def _safe(text: str) -> str:
    """Names and reasons come from strangers: neither markup nor what moves the cursor."""
    return escape(printable(text))


def _fail(ctx: click.Context, as_json: bool, code: int, text: str) -> None:
    if as_json:
        click.echo(json.dumps({"findings": [], "company": [], "error": text}))
    else:
        click.echo(printable(text), err=True)
    ctx.exit(code)
