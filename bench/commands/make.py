"""`coldload make`: a checkpoint of random numbers in the shape of a real model.

The JSON document (one, also when it fails; then only ok, error, shape and path are set):
    ok              whether the checkpoint is there
    error           why it isn't, else null
    shape, path     the shape's name; the folder
    format, dtype, seed
    files           a list of {name, bytes}; empty for an npcache
    tensors         how many
    tensor_bytes    of all tensors
    dims            the dimensions as scaled
    scaled          the published values of those that were changed
    seconds         that it took
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from bench.sizes import SizeError, format_size, parse_size
from bench.synth.place import MakeError, PlaceError
from bench.synth.shapes import DTYPES, load_shape, shape_names
from bench.synth.write import FORMATS, Made, make_checkpoint
from loaders.checkpoint.text import printable
from loaders.store.address import is_address, masked


@click.command(
    short_help="A checkpoint of random numbers in the shape of a real model.",
    epilog=f"Shapes: {', '.join(shape_names())}.",
)
@click.argument("shape")
@click.argument("folder", metavar="DIR")
@click.option(
    "--size",
    default="1GiB",
    show_default=True,
    help="Bytes of all tensors, as in 16MiB, 1.5GB or 2G (2^31); 'full' for the whole model.",
)
@click.option("--shards", default=4, show_default=True, help="Weight files; npcache has none.")
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="safetensors", show_default=True
)
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    help="Of the weights; float8_e4m3fn quantises linear ones in blocks.  [default: the model's]",
)
@click.option("--seed", default=0, show_default=True, help="Same seed, same bytes.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(
    shape: str,
    folder: str,
    size: str,
    shards: int,
    form: str,
    dtype: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Make the new folder DIR with a checkpoint of random numbers in the shape of the model SHAPE:
    its tensor names and dtypes, scaled down to a size by fewer layers or experts, then by width.

    Exit code: 0 done, 1 it could not be written (nothing is left behind), 2 wrong usage or DIR
    can't be made, 130 interrupted.
    """
    started = time.monotonic()
    try:
        if is_address(folder):
            folder = masked(folder)
            raise PlaceError(f"{folder}: expected a folder of this host, found an address")
        with ended_by_signals(), progress_bar("making") as progress:
            made = make_checkpoint(
                shape,
                folder,
                size=None if size == "full" else parse_size(size),
                shards=shards,
                format=form,
                dtype=dtype,
                seed=seed,
                progress=progress,
            )
    except KeyboardInterrupt:
        click.echo(f"{printable(folder)}: interrupted; nothing was left behind", err=True)
        sys.exit(130)
    except (ValueError, MakeError) as error:
        text = f"--size: {error}" if isinstance(error, SizeError) else str(error)
        click.echo(printable(text), err=True)
        if as_json:
            _print_json({"ok": False, "error": text, "shape": shape, "path": folder})
        failed = isinstance(error, MakeError) and not isinstance(error, PlaceError)
        sys.exit(1 if failed else 2)
    seconds = time.monotonic() - started
    if as_json:
        _print_json(_document(made, folder, form, dtype, seed, seconds))
    else:
        click.echo(_sentence(made, form, seconds))


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Lets a termination or a lost terminal clean up as Ctrl-C does."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar with the time left on standard error, for people only."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    columns = (
        TextColumn(what),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _changed(made: Made) -> dict[str, int]:
    """The published values of the dimensions that were scaled."""
    full = load_shape(made.shape.name).dims
    return {name: value for name, value in full.items() if made.shape.dims[name] != value}


def _sentence(made: Made, form: str, seconds: float) -> str:
    changed = _changed(made)
    scaled = ", ".join(f"{name} {made.shape.dims[name]} of {changed[name]}" for name in changed)
    files = f"{len(made.files)} {form} file(s)" if made.files else f"{made.tensors} {form} files"
    return (
        f"{printable(str(made.folder))}: {made.shape.name}, {made.tensors} tensors, "
        f"{format_size(made.tensor_bytes)} in {files}, {seconds:.1f} s\n"
        f"scaled: {scaled or 'nothing, it is the whole model'}"
    )


def _document(
    made: Made, folder: str, form: str, dtype: str | None, seed: int, seconds: float
) -> dict[str, Any]:
    return {
        "ok": True,
        "error": None,
        "shape": made.shape.name,
        "path": folder,
        "format": form,
        "dtype": dtype or made.shape.linear_dtype,
        "seed": seed,
        "files": [{"name": name, "bytes": size} for name, size in made.files.items()],
        "tensors": made.tensors,
        "tensor_bytes": made.tensor_bytes,
        "dims": dict(made.shape.dims),
        "scaled": _changed(made),
        "seconds": round(seconds, 3),
    }


def _print_json(document: dict[str, Any]) -> None:
    click.echo(json.dumps(document, indent=2))
