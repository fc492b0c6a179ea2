"""`coldload compare`: runs, or storages of one, side by side.

The JSON document:
    runs         the names as given
    comparisons  one for each run after the first, against the first: {a, b, differs, cases, only_a,
                 only_b, failed}. differs is a list of {what, a, b}; cases a list of {phase, title,
                 where, stages}, stages {name: {a, b, ratio, paired, p, verdict, needed}} with
                 seconds as {n, median, low, high}
    gates        a list of {gate, with, breaches, undecided}: a gate with a breach is exit 1, one
                 that the passes can't decide exit 3
    error        why there is nothing (exits 2 and 3), else absent
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from bench.compare.cases import TOO_FEW, Cases, Compared, Timed, compare_cases
from bench.compare.differs import Differs, differences
from bench.compare.gate import GateError, judge, parse_gate
from bench.console import console
from bench.given import Given, losses, read_given
from bench.record.records import RecordsError
from bench.record.significance import LEVEL
from bench.record.summary import STAGES
from loaders.checkpoint.text import count, listed, printable

MOST_DIFFERENCES = 12
SHOWN = {"slower", "faster"}
Told = tuple[Given, list[Differs], Cases]


@click.command("compare", short_help="Compare runs, or storages of one run, case by case.")
@click.argument("runs", nargs=-1, required=True, metavar="A B...")
@click.option("--stage", type=click.Choice(STAGES), default="total", show_default=True)
@click.option("--fail-if", "limits", multiple=True, help="Exit 1 if e.g. 'read slower 10%'.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.pass_context
def command(
    ctx: click.Context,
    runs: tuple[str, ...],
    stage: str,
    limits: tuple[str, ...],
    as_json: bool,
) -> None:
    """A and B are runs' folders, or FOLDER:label for one storage; further ones are compared with A
    too. Cases are matched by what was measured, in the cache state that was verified; storages
    named by their label count as the same.

    --fail-if takes a stage or a phase, slower or faster, and a percentage; it can be repeated.

    It fails on a difference that is shown; where the passes can't tell, it says how many could.

    Exit codes: 0 done, 1 a limit was passed, 2 wrong usage or a run that can't be read, 3 the runs
    have no case in common, or too few passes to tell whether a limit was passed.
    """
    try:
        gates = [parse_gate(text) for text in limits]
        if len(runs) < 2:
            raise GateError(f"{runs[0]}: name at least two, as in RUN OTHER or RUN:nvme RUN:nfs")
        first, *others = [read_given(text) for text in runs]
        told = [(one, differences(first, one), compare_cases(first, one)) for one in others]
        lacking = [one for one, _, cases in told if not cases.both and not cases.failed]
        if lacking:
            _fail(ctx, as_json, 3, _nothing_in_common(first, lacking[0]))
            return
        passed = [
            {"gate": gate.text, "with": one.name, **asdict(judge(gate, cases))}
            for gate in gates
            for one, _, cases in told
        ]
    except (RecordsError, GateError) as error:
        _fail(ctx, as_json, 2, str(error))
        return
    for loss in filter(None, map(losses, (one.run for one in (first, *others)))):
        click.echo(printable(loss), err=True)
    if as_json:
        click.echo(json.dumps(_document(first, told, passed)))
    else:
        _show(first, told, stage)
        _show_gates(passed)
    failed, undecided = (any(one[of] for one in passed) for of in ("breaches", "undecided"))
    ctx.exit(1 if failed else 3 if undecided else 0)


def _nothing_in_common(first: Given, other: Given) -> str:
    """With what differs in the settings, for that is why."""
    settings = {"model", "size", "dtype", "smoke"}
    why = [
        f"{one.what} {one.a} and {one.b}"
        for one in differences(first, other)
        if one.what in settings
    ]
    labels = [
        listed(dict.fromkeys(s.storage.label for s in given.run.samples if s.storage)) or "none"
        for given in (first, other)
    ]
    if labels[0] != labels[1] and first.label is None:
        why.append(
            f"storages {labels[0]} and {labels[1]}: name one of each, as in {first.name}:LABEL"
        )
    because = f" ({'; '.join(why)})" if why else ""
    return f"{first.name} and {other.name} have no measured case in common{because}"


def _document(first: Given, told: Sequence[Told], passed: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "runs": [first.name, *(one.name for one, _, _ in told)],
        "comparisons": [
            {
                "a": first.name,
                "b": one.name,
                "differs": [asdict(differ) for differ in differs],
                "cases": [_case(case) for case in cases.both],
                "only_a": list(cases.only_a),
                "only_b": list(cases.only_b),
                "failed": [asdict(failure) for failure in cases.failed],
            }
            for one, differs, cases in told
        ],
        "gates": passed,
    }


def _case(case: Compared) -> dict[str, Any]:
    body = asdict(case)
    del body["key"]
    return body


def _show(first: Given, told: Sequence[Told], stage: str) -> None:
    out = console()
    for one, differs, cases in told:
        out.print(f"[bold]{_safe(first.name)}[/bold] and [bold]{_safe(one.name)}[/bold]")
        _show_differences(differs)
        for failure in cases.failed:
            out.print(
                f"  [red]failed in the second:[/red] {_safe(failure.name)}: {_safe(failure.reason)}"
            )
        for which, names in (("first", cases.only_a), ("second", cases.only_b)):
            if names:
                out.print(f"  only in the {which}: {_safe(listed(names))}")
    _show_table(first, told, stage)
    _show_reading(told, stage)


def _show_differences(differs: Sequence[Differs]) -> None:
    out = console()
    if not differs:
        out.print("  host and settings are the same")
    for one in differs[:MOST_DIFFERENCES]:
        out.print(f"  [yellow]differs:[/yellow] {_safe(one.what)}: {_safe(one.a)} | {_safe(one.b)}")
    if len(differs) > MOST_DIFFERENCES:
        out.print(f"  and {len(differs) - MOST_DIFFERENCES} more (all with --json)")


def _show_table(first: Given, told: Sequence[Told], stage: str) -> None:
    """A row for each case of the first; of two runs with the bounds and the verdict, of more as a
    matrix of ratios."""
    table = Table(box=None, pad_edge=False)
    table.add_column("case")
    table.add_column(f"{_safe(first.name)}: {stage} s", justify="right")
    for one, _, _ in told:
        table.add_column(_safe(one.name), justify="right")
        if len(told) == 1:
            table.add_column("time, x", justify="right")
            table.add_column("bounds", justify="right")
            table.add_column("verdict")
    found = [{case.key: case for case in cases.both} for _, _, cases in told]
    for key in dict.fromkeys(key for cases in found for key in cases):
        timed = [cases[key].stages.get(stage) if key in cases else None for cases in found]
        known = next((one for one in timed if one is not None), None)
        if known is None:
            continue
        case = next(cases[key] for cases in found if key in cases)
        cells = [f"{known.a.median:.3f}"]
        for one_timed in timed:
            cells += _cells(one_timed) if len(told) == 1 else [_matrix_cell(one_timed)]
        table.add_row(_safe(f"{case.title} ({case.where})"), *cells)
    out = console()
    out.width = max(out.width, 160)
    out.print(table)


def _cells(timed: Timed | None) -> list[str]:
    if timed is None:
        return ["", "", "", ""]
    ratio = timed.ratio
    bounds = f"{ratio.low:.2f} to {ratio.high:.2f}" if ratio.n > 1 else "1 pass"
    colour = {"slower": "red", "faster": "green"}.get(timed.verdict)
    verdict = f"[{colour}]{timed.verdict}[/{colour}]" if colour else timed.verdict
    return [f"{timed.b.median:.3f}", f"{ratio.median:.2f}", bounds, verdict]


def _matrix_cell(timed: Timed | None) -> str:
    if timed is None:
        return "-"
    mark = {"slower": " +", "faster": " -", TOO_FEW: " ?"}.get(timed.verdict, "  ")
    return f"{timed.ratio.median:.2f} x{mark}"


def _show_reading(told: Sequence[Told], stage: str) -> None:
    """How to read the table: what the ratio is, and what the passes could show."""
    out = console()
    timed = [
        case.stages[stage] for _, _, cases in told for case in cases.both if stage in case.stages
    ]
    if not timed:
        out.print(f"No case has the stage {stage}.")
        return
    kinds = listed(dict.fromkeys(one.ratio.kind for one in timed))
    out.print(f"x is the second's time over the first's: above 1 it is slower. Bounds: {kinds}.")
    if len(told) > 1:
        out.print("+ slower, - faster, ? too few passes to show any difference.")
    needed = [one for one in timed if one.verdict == TOO_FEW]
    if needed:
        passes = f"{needed[0].a.n} and {needed[0].b.n} passes"
        pairs = "in one run" if needed[0].paired else "in each run"
        out.print(
            f"{count(len(needed), 'case')} with too few passes (such as {passes}): no difference "
            f"could be shown, however large; it takes {needed[0].needed} {pairs} "
            f"(--passes={needed[0].needed})."
        )
    soon = [one.needed for one in timed if one.verdict not in SHOWN | {TOO_FEW} and one.needed]
    if soon:
        out.print(
            f"{count(len(soon), 'case')} without a difference might show one with more passes, if "
            f"they come as these did: from about {min(soon)} on."
        )
    able = len(timed) - len(needed)
    if able * LEVEL >= 1:
        out.print(
            f"Of {able} cases without any difference, about {able * LEVEL:.0f} would be called "
            f"slower or faster by chance."
        )


def _show_gates(passed: Sequence[dict[str, Any]]) -> None:
    out = console()
    for gate in passed:
        state = "[green]holds[/green]"
        if gate["breaches"]:
            state = "[red]passed the limit[/red]"
        elif gate["undecided"]:
            state = "[yellow]the passes can't tell[/yellow]"
        out.print(f"{_safe(gate['gate'])}: {state}")
        for text in (*gate["breaches"], *gate["undecided"]):
            out.print(f"  {_safe(text)}")


def _safe(value: object) -> str:
    """Names and reasons come from strangers: neither markup nor what moves the cursor."""
    return escape(printable(str(value)))


def _fail(ctx: click.Context, as_json: bool, code: int, text: str) -> None:
    if as_json:
        click.echo(json.dumps({"comparisons": [], "error": text}))
    else:
        click.echo(printable(text), err=True)
    ctx.exit(code)
