"""`coldload watch`: start an engine, pass its output on, and say what its start was made of.

With --json the one document on standard output is that of bench/watch/document.py (with --isolate
that of bench/watch/isolate.py), and the engine's output goes to standard error; on a failure to
start {"error": why} alone.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from bench.explain.secrets import hidden, secrets_in
from bench.watch.document import document, exit_code
from bench.watch.engine import StartError
from bench.watch.probes import UrlError, checked
from bench.watch.session import watch
from bench.watch.text import summary
from bench.watch.watched import Watched, Wishes
from loaders.checkpoint.text import printable


def _url(ctx: click.Context, option: click.Parameter, value: str | None) -> str | None:
    try:
        return None if value is None else checked(value)
    except UrlError as error:
        raise click.BadParameter(str(error)) from error


def _key(ctx: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """The key itself: it comes from the environment, for a command line is seen by everybody."""
    key = os.environ.get(value or "VLLM_API_KEY", "").strip()
    if value is not None and not key:
        named = value if re.fullmatch(r"[A-Z][A-Z0-9_]*", value) else "such variable"
        raise click.BadParameter(
            f"the environment has no {named}; give the name of a variable that holds the key, not "
            "the key"
        )
    if not (key.isascii() and key.isprintable()):
        raise click.BadParameter("that variable's value is no key: a header can't hold it")
    return key or None


@click.command(
    "watch",
    short_help="Start an engine and say what its start was made of.",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@click.option("--ready-url", callback=_url, help="Ready once this answers 200, not by the log.")
@click.option(
    "--first-token-url", callback=_url, help="Asked once it's ready: time to first token."
)
@click.option("--first-token-body", help="JSON to post there (a prompt of your own), or @FILE.")
@click.option(
    "--api-key-env",
    metavar="NAME",
    callback=_key,
    help="The environment variable with the key for these addresses.  [default: VLLM_API_KEY]",
)
@click.option(
    "--until-ready",
    "until_ready",
    flag_value=True,
    type=bool,
    default=False,
    help="End the engine once it's ready.",
)
@click.option(
    "--keep",
    "until_ready",
    flag_value=False,
    type=bool,
    help="Leave it running until it ends or is interrupted (the default).",
)
@click.option(
    "--isolate",
    is_flag=True,
    help="Start it several times and subtract: cold, warm, without graphs, with dummy weights.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Give up if it isn't ready after S seconds.",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    metavar="S",
    help="Seconds that it's given after SIGINT, and again after SIGTERM.",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the document there, also if it fails or is interrupted.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON document on standard output; the engine's output goes to standard error.",
)
@click.argument("engine", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- ENGINE...")
def command(
    ready_url: str | None,
    first_token_url: str | None,
    first_token_body: str | None,
    api_key_env: str | None,
    until_ready: bool,
    isolate: bool,
    timeout: float | None,
    grace: float,
    record: Path | None,
    as_json: bool,
    engine: tuple[str, ...],
) -> None:
    """Start ENGINE (coldload watch -- vllm serve MODEL ...), pass its output on as it is, and say
    of each stage of its start how long it took and what it was made of: waiting for the disk,
    faulting pages, copying, computing or waiting for something else.

    What is found goes to standard error once the engine is ready. Then the engine runs on, as it
    would without us. Interrupting ends it with all its processes.

    Exit codes: 0 it was ready, 1 it failed or wasn't ready in time, 2 it can't be started, 3 it
    ended and nothing that it printed was an engine's, 130 interrupted.
    """
    wishes = Wishes(
        ready_url=ready_url,
        first_token_url=first_token_url,
        first_token_body=_body(first_token_body),
        api_key=api_key_env,
        secrets=secrets_in(engine, os.environ) | ({api_key_env} if api_key_env else set()),
        until_ready=until_ready or isolate,
        timeout=timeout,
        stdout=2 if as_json or isolate else 1,
        stderr=2,
        grace=(grace, grace, 5.0),
    )
    _writable(record)
    try:
        if isolate:
            code = _isolate(engine, wishes, record, as_json)
        else:
            code = _once(engine, wishes, record, as_json)
    except StartError as error:
        _fail(hidden(str(error), wishes.secrets), as_json)
        code = 2
    sys.exit(code)


def _once(engine: tuple[str, ...], wishes: Wishes, record: Path | None, as_json: bool) -> int:
    told: list[str] = []

    def on_ready(seen: Watched) -> None:
        found = document(seen)
        _write(record, found)
        told[:] = summary(found)
        _tell(told)

    seen = watch(engine, wishes, on_ready, lambda text: _tell([text]))
    found = document(seen)
    _write(record, found)
    lines = list(summary(found))
    if not told:
        _tell(lines)
    elif lines[0] != told[0]:
        _tell(lines[:1])
    if as_json:
        click.echo(json.dumps(found, indent=2))
    return exit_code(seen)


def _isolate(engine: tuple[str, ...], wishes: Wishes, record: Path | None, as_json: bool) -> int:
    from bench.watch.isolate import IsolateError, isolated, lines

    try:
        found, code = isolated(engine, wishes, _tell)
    except IsolateError as error:
        _fail(hidden(str(error), wishes.secrets), as_json)
        return 2
    _write(record, found)
    _tell(list(lines(found)))
    if as_json:
        click.echo(json.dumps(found, indent=2))
    return code


def _tell(lines: list[str]) -> None:
    """To standard error, each line marked as ours among the engine's."""
    for line in lines:
        click.echo(f"coldload: {line}", err=True)


def _body(given: str | None) -> str | None:
    """The JSON to post, from the option or from the file that it names."""
    if given is None:
        return None
    try:
        content = Path(given[1:]).read_text() if given.startswith("@") else given
        json.loads(content)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise click.BadParameter(
            f"{printable(given)}: {reason}; give JSON, or @FILE with JSON in it",
            param_hint="--first-token-body",
        ) from error
    return content


def _writable(record: Path | None) -> None:
    """Found out before the engine starts, not after minutes."""
    if record is None:
        return
    folder = record.parent
    if record.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        why = "is a folder" if record.is_dir() else f"can't be written: {folder} isn't a folder "
        why += "" if record.is_dir() else "that can be written to"
        raise click.BadParameter(f"{printable(str(record))} {why}", param_hint="--record")


def _write(record: Path | None, found: Mapping[str, Any]) -> None:
    """Whole or not at all: what was there before stays until the new one is complete."""
    if record is None:
        return
    part = record.with_name(f".{record.name}.{os.getpid()}.part")
    try:
        part.write_text(json.dumps(found, indent=2) + "\n")
        part.replace(record)
    except OSError as error:
        part.unlink(missing_ok=True)
        _tell([f"{printable(str(record))} can't be written: {error.strerror}"])


def _fail(text: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"error": text}))
    else:
        click.echo(printable(text), err=True)
