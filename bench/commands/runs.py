"""`coldload runs`: what runs there are, and what is missing in one of them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from bench.console import console
from bench.record.records import RECORDS, RecordsError, Run, read_run
from bench.run.budget import is_spent
from loaders.checkpoint.text import printable
from loaders.store.address import is_address, masked


@click.command("runs", short_help="List runs, or say what one run measured and what is missing.")
@click.argument("folder", default="runs")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.pass_context
def command(ctx: click.Context, folder: str, as_json: bool) -> None:
    """FOLDER is a run's folder (with records.jsonl), or one that holds runs (default: runs).

    Exit codes: 0 all that was planned was measured (or can't be here), 1 something is missing,
    failed, or wasn't reached within the budget, 2 one can't be read, 3 there is no run.
    """
    if is_address(folder):
        said = f"{masked(folder)}: expected a run's folder, found an address"
        _fail(ctx, as_json, 2, said)
    try:
        found = _runs_in(Path(folder))
    except OSError as error:
        _fail(ctx, as_json, 2, f"{folder}: {error.strerror}")
        return
    if not found:
        _fail(ctx, as_json, 3, f"{folder}: no run there; pytest --benchmark-only makes one")
        return
    described, errors = [], []
    for path in found:
        try:
            described.append(describe(read_run(path)))
        except RecordsError as error:  # one that can't be read hides none of the others
            errors.append(str(error))
    if as_json:
        told = {"error": "\n".join(errors)} if errors else {}
        click.echo(json.dumps({"runs": described, **told}))
    else:
        for one in described:
            _show(one, alone=len(found) == 1)
        for text in errors:
            click.echo(printable(text), err=True)
    complete = all(one["complete"] for one in described)
    ctx.exit(2 if errors else 0 if complete else 1)


def _runs_in(folder: Path) -> list[Path]:
    if folder.is_file() or (folder / RECORDS).is_file():
        return [folder]
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if (path / RECORDS).is_file())


def describe(run: Run) -> dict[str, Any]:
    """What a run holds, JSON-able: counts by status, the planned cases that lack passes (`missing`;
    `unreached` those that the budget left out), what failed and why, whether its last line was cut
    off."""
    missing = run.missing()
    settled = run.settled()
    statuses = Counter(sample.status for sample in settled)
    plan = run.plan or {}
    planned = len(plan.get("cases", ())) * int(plan.get("passes", 0))
    failed = [
        {"case": sample.case, "pass": sample.pass_number, "reason": sample.reason}
        for sample in settled
        if sample.status == "failed"
    ]
    unreached: dict[str, list[int]] = {}
    for sample in settled:
        if sample.status == "skipped" and is_spent(sample.reason):
            unreached.setdefault(sample.case, []).append(sample.pass_number)
    return {
        "path": str(run.path),
        "started": plan.get("started"),
        "model": plan.get("model"),
        "size": plan.get("size"),
        "smoke": bool(plan.get("smoke")),
        "planned": planned if run.plan else None,
        "ok": statuses["ok"],
        "skipped": statuses["skipped"],
        "failed": failed,
        "discarded": len(run.samples) - len(settled),
        "missing": missing,
        "unreached": unreached,
        "cut": run.cut,
        "complete": run.plan is not None and not missing and not failed and not unreached,
    }


def _show(one: dict[str, Any], *, alone: bool) -> None:
    out = console()
    lacking = sum(len(passes) for passes in one["missing"].values())
    late = sum(len(passes) for passes in one["unreached"].values())
    planned = "no plan" if one["planned"] is None else f"{one['planned']} planned"
    out.print(
        _safe(
            f"{one['path']}: {one['model']}, started {one['started']}: {planned}, {one['ok']} ok, "
            f"{one['skipped']} skipped{f' ({late} for want of time)' if late else ''}, "
            f"{len(one['failed'])} failed, {lacking} missing"
            f"{', last line cut off' if one['cut'] else ''}{' (smoke)' if one['smoke'] else ''}"
        )
    )
    if not alone:
        return
    for case, passes in one["missing"].items():
        out.print(_safe(f"  missing: {case}, pass {_numbers(passes)}"))
    for case, passes in one["unreached"].items():
        out.print(_safe(f"  not reached within the budget: {case}, pass {_numbers(passes)}"))
    for failure in one["failed"]:
        out.print(
            _safe(f"  failed: {failure['case']}, pass {failure['pass']}: {failure['reason']}")
        )


def _numbers(passes: list[int]) -> str:
    return ", ".join(map(str, passes))


def _safe(text: str) -> str:
    """Names and reasons come from strangers: neither markup nor what moves the cursor."""
    return escape(printable(text))


def _fail(ctx: click.Context, as_json: bool, code: int, text: str) -> None:
    if as_json:
        click.echo(json.dumps({"runs": [], "error": text}))
    else:
        click.echo(printable(text), err=True)
    ctx.exit(code)
