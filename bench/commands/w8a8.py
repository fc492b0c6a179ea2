"""`coldload w8a8`: whether a checkpoint quantised offline saves time, from a run's records.

The JSON document:
    run            the records it was made from
    verdicts       a list, one for each {storage, cache, device, ranks, into (the layout)}:
        equal      whether both ways came to the same weights; where not, exit code 1
        saving     {of, median, low, high, passes, bounds}: seconds, online less offline; `shown`
                   whether a difference was shown
        why        {bytes_not_read, read_rate, read, quantise, rest}: bytes, bytes/s, seconds
        break_even bytes/s of a storage at which both take as long; null: offline is quicker at any
        even_reasons     bytes/s at which not reading saves as much as all else
        besides_reading  seconds that offline saves besides reading
        online, offline  {seconds, passes, fetched_bytes, checkpoint_bytes, stages}: each stage's
                   seconds and share, the most that a remedy for it could save
        sentences  the same in words
    offline_alone  places where only the offline way was measured
    engines        what engines do of this
    projections    with --project-to, one for each verdict: {source_bytes, quantised_bytes, tp,
                   quantised_share (of the measured bytes), online, offline: {fetched, stages,
                   alone, together}, saves_alone, saves_together, sentences}
    error          why there is nothing (exits 2 and 3), else absent
"""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.markup import escape

from bench.console import console
from bench.record.records import RecordsError, Run, read_run
from bench.sizes import parse_size
from bench.words.w8a8_projection import Projection, degree_of, project
from bench.words.w8a8_verdict import Verdict, alone, verdicts
from bench.words.w8a8_words import document, projected_sentences, w8a8_findings
from loaders.checkpoint.text import printable
from loaders.store.address import is_address, masked


@click.command(
    "w8a8", short_help="Say whether quantising offline saves time, from a run's records."
)
@click.argument("run")
@click.option(
    "--project-to",
    metavar="SIZE",
    help="The same for a checkpoint of that size, such as 41.27GiB: tensor bytes, unquantised.",
)
@click.option(
    "--of",
    type=click.Choice(["source", "quantised"]),
    default="source",
    show_default=True,
    help="Which of the two checkpoints has the size of --project-to.",
)
@click.option(
    "--tp", type=click.IntRange(1, 4096), help="Ranks to project to.  [default: the run's]"
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.pass_context
def command(
    ctx: click.Context, run: str, project_to: str | None, of: str, tp: int | None, as_json: bool
) -> None:
    """RUN is a run's folder that has bench_w8a8 in it: pytest bench/bench_w8a8.py --benchmark-only.

    Exit codes: 0 done, 1 the two ways didn't come to the same weights, 2 RUN can't be read or an
    option can't be used, 3 nothing of w8a8 was measured in it.
    """
    try:
        nbytes = _size(project_to)
        if nbytes is None and tp is not None:
            raise ValueError("--tp goes with --project-to")
        if is_address(run):
            raise ValueError(f"{masked(run)}: expected a run's folder, found an address")
        found = read_run(Path(run))
        made = verdicts(found)
        projected = _projections(made, nbytes, tp, of)
    except (RecordsError, ValueError) as error:
        _fail(ctx, as_json, 2, str(error))
        return
    if not made and not alone(found):
        text = f"{found.path}: nothing of w8a8 was measured; pytest bench/bench_w8a8.py does it"
        _fail(ctx, as_json, 3, text)
        return
    if as_json:
        click.echo(json.dumps(document(found, projected)))
    else:
        _show(found, projected)
    ctx.exit(0 if all(one.equal for one in made) else 1)


def _size(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        found = parse_size(text)
    except ValueError as error:
        raise ValueError(f"--project-to={text}: {error}") from error
    if found <= 0:
        raise ValueError(f"--project-to={text}: expected more than 0 bytes")
    return found


def _projections(
    made: list[Verdict], nbytes: int | None, tp: int | None, of: str
) -> list[Projection]:
    """Of ways that came to different weights nothing is projected."""
    if nbytes is None:
        return []
    if not made:
        raise ValueError("--project-to needs a run with both ways, online and offline")
    return [
        project(
            one,
            nbytes,
            tp if tp is not None else degree_of(one.place.ranks),
            of_quantised=of == "quantised",
        )
        for one in made
        if one.equal
    ]


def _show(run: Run, projected: list[Projection]) -> None:
    out = console()
    said = w8a8_findings(run)
    if not said:
        out.print("A smoke run: its figures mean nothing, and nothing is said of them.")
    for sentence in [*said, *(text for one in projected for text in projected_sentences(one))]:
        out.print(escape(printable(sentence)))


def _fail(ctx: click.Context, as_json: bool, code: int, text: str) -> None:
    if as_json:
        click.echo(json.dumps({"verdicts": [], "projections": [], "error": text}))
    else:
        click.echo(printable(text), err=True)
    ctx.exit(code)
