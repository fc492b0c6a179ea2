"""`coldload advise`: what to change, from what a run recorded.

The JSON document:
    run        the records it was made from
    engine     "vllm-0.33": for which version the flags hold
    company    signs that the host wasn't alone, each a sentence
    findings   a list of {name, title, seen, do, cost, saving, in_start}; saving is null or
               {seconds, of, low, high, passes, bounds, at_most}: seconds for the bytes of the run;
               in_start the same share of the weights' seconds in the log, null without one
    start      {weights, wall, bound} of the log given with --explain, else null
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
from bench.advice.start import Start
from bench.console import console
from bench.explain.build import build
from bench.explain.document import NoEngineLinesError, read
from bench.given import losses, read_given
from bench.record.records import RecordsError, Run, measured
from bench.words.engine_settings import NEWEST, Version, version_of
from loaders.checkpoint.text import printable

ENGINE = f"vllm-{'.'.join(map(str, NEWEST))}"
_ENGINE = re.compile(r"vllm-(\d+(?:\.\d+){1,3})")


@click.command("advise", short_help="Say what to change, by seconds saved, from a run's records.")
@click.argument("run")
@click.option("--for", "engine", default=ENGINE, show_default=True, help="The engine to set up.")
@click.option("--explain", "log", help="An engine's start-up log: what it comes to there.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.pass_context
def command(ctx: click.Context, run: str, engine: str, log: str | None, as_json: bool) -> None:
    """RUN is a run's folder, or FOLDER:label for one storage of it.

    At most seven findings, those first that save most. Each has its figures, what to type, what it
    would save with bounds, and what it costs; nothing is said without evidence in the records.

    Exit codes: 0 done, 2 RUN or LOG can't be read, 3 nothing was measured in it, or LOG
    has no engine lines.
    """
    try:
        version = _version(engine)
        given = read_given(run)
        start = _start(log) if log is not None else None
    except NoEngineLinesError as error:
        _fail(ctx, as_json, 3, str(error))
        return
    except OSError as error:
        _fail(ctx, as_json, 2, f"{error.filename or log}: {error.strerror}; give the log's file")
        return
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
        click.echo(json.dumps(document(given.run, engine, found, company, start)))
    else:
        _show(found, company, start)


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


def _start(log: str) -> Start:
    phases = build(read(log)).phases
    return Start(weights=phases.weights_seconds, wall=phases.startup_wall_secs)


def document(
    run: Run, engine: str, found: list[Advice], company: list[str], start: Start | None
) -> dict[str, Any]:
    """What --json prints: see the top of this file."""
    return {
        "run": str(run.path),
        "engine": engine,
        "company": company,
        "findings": [
            {
                **asdict(one),
                "saving": _saving(one.saving),
                "in_start": start.seconds(one) if start else None,
            }
            for one in found
        ],
        "start": {**asdict(start), "bound": start.bound()} if start else None,
    }


def _saving(saved: Saving | None) -> dict[str, Any] | None:
    if saved is None:
        return None
    body = asdict(saved)
    return {"passes": body.pop("n"), "bounds": body.pop("kind"), **body}


def _show(found: list[Advice], company: list[str], start: Start | None) -> None:
    out = console()
    if start is not None:
        out.print(_safe(start.bound()))
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
        if start is not None and (there := start.seconds(one)) is not None:
            out.print(f"   The same share of that start: {there:.1f} s")
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
