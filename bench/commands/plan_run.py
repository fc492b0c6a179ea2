"""`coldload plan-run`: what a run would measure, how long that takes, what it writes and reads.

The JSON document:
    model, size    what would be loaded; bytes, null where they can't be known yet
    passes, cases  each case with phase, loader, options, threads, storage, cache, device, layout
    seconds        [least, most] of measuring, null where nothing can be told
    before         seconds of set-up
    written, read  bytes by storage
    notes          what else holds
    error          why there is nothing (exits 1 to 3), else absent
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import click

from loaders.checkpoint.text import printable

ROOT = Path(__file__).parent.parent.parent
EXIT = {0: 0, 1: 1, 2: 130, 5: 3}
"""pytest's exit codes as the table of these commands has them; all others are wrong usage."""

FRAME = re.compile(r"=+ .* =+$|collected \d+ items")
"""What pytest says of itself."""


@click.command(
    "plan-run",
    short_help="Say how long a run would take, and what it would write and read.",
    context_settings={"ignore_unknown_options": True},
)
@click.option("--cases", is_flag=True, help="List each case too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF THE RUN]")
@click.pass_context
def command(ctx: click.Context, options: tuple[str, ...], cases: bool, as_json: bool) -> None:
    """Takes what pytest --benchmark-only takes (--model=..., --storage=..., --passes=...), with the
    equals sign. Nothing is measured, made or downloaded.

    Exit codes: 0 done, 1 the model has a fault, 2 wrong usage or a model that can't be read, 3 no
    case is left, 130 interrupted.
    """
    # A process of its own: pytest is where options are read and cases chosen, and commands stay
    # quick without it.
    form = ["--plan-json"] if as_json else ["--collect-only"] if cases else ["--plan"]
    named = [one for one in options if not one.startswith("-")]
    benches = [] if named else [str(ROOT / "bench")]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml")),
            *("--rootdir", str(ROOT), "-p", "no:cacheprovider", "--no-header"),
            *("--benchmark-only", *form, *options, *benches),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    code = EXIT.get(done.returncode, 2)
    lines = [line for line in done.stdout.splitlines() if not FRAME.match(line)]
    if not as_json:
        click.echo("\n".join(map(printable, lines)).strip("\n"), err=code != 0)
        ctx.exit(code)
    found = [line for line in lines if line.startswith('{"model": ')]
    if found and code == 0:
        click.echo(found[0])
        ctx.exit(0)
    said = [line.strip() for line in lines if line.strip()]
    click.echo(json.dumps({"error": "\n".join(said)}))
    ctx.exit(code or 1)
