"""`coldload check`: what a checkpoint holds and everything that is wrong with it.

The JSON document (one, also for exits 2 and 3):
    ok              true if there is no problem of severity "error"
    error           why there is no manifest at all (exits 2 and 3), else null
    path, root      as given; the folder that was read (of addresses without user, password, query)
    format          "safetensors", "pt", "npcache", "tensorizer" or "snapshot"
    files           a list of {name, bytes}, in the order in which they are read
    tensors         how many
    tensor_bytes    of all tensors, each for itself
    storage_bytes   of the memory they lie in, each storage once (differs for torch files only)
    file_bytes      of all files
    dtypes          {dtype: bytes}, the largest first
    ignored         a list of {file, reason}
    problems        a list of {code, file, tensor, message, severity}
    snapshot        what a snapshot says about itself (layout, source, quantisation, ...), else null
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, get_args

import click
from rich.console import Console
from rich.progress import (
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from bench.sizes import format_size
from loaders.checkpoint.folder import Asked
from loaders.checkpoint.manifest import (
    Checkpoint,
    CheckpointError,
    NoWeightsError,
    UnreadableError,
)
from loaders.checkpoint.quantised import with_quantisation
from loaders.checkpoint.read import examine
from loaders.checkpoint.text import count, printable, shown
from loaders.store.address import masked

_MOST_IGNORED = 20


@click.command(short_help="Is this checkpoint sound? Every fault, by file and tensor.")
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.option(
    "--format",
    "asked",
    type=click.Choice(get_args(Asked)),
    default="auto",
    show_default=True,
    help="The format to read; auto takes *.safetensors, else *.bin, else *.pt.",
)
@click.option(
    "--checksum",
    is_flag=True,
    help="Read every file whole and compare it with the checksum it was downloaded under.",
)
@click.option("--verify", is_flag=True, help="Read a snapshot whole and compare it.")
@click.option(
    "--source", metavar="MODEL", help="What a snapshot must have been made from; it is read whole."
)
@click.option("--tp", type=click.IntRange(1), help="The degree that a snapshot must be for.")
@click.option("--pp", type=click.IntRange(1), help="The same for pipeline stages.")
@click.option("--ep", type=click.IntRange(1), help="The same for expert parallelism.")
@click.option("--rank", type=click.IntRange(0), help="The rank that a snapshot must be of.")
def command(
    path: str,
    as_json: bool,
    asked: Asked,
    checksum: bool,
    verify: bool,
    source: str | None,
    **degrees: int | None,
) -> None:
    """Examine the checkpoint at PATH (a folder, a file, a folder of the Hugging Face cache, or an
    address such as https://host/model or s3://bucket/model) from its headers, and of a folder that
    is quantised the scales' values.

    Exit code: 0 sound, 1 it has a fault, 2 PATH can't be read, 3 there are no weights.
    """
    try:
        times = checksum + verify
        with _progress(path, asked, times, more=source is not None) as on_bytes:
            found = examine(path, format=asked, verify_blobs=checksum, on_bytes=on_bytes)
            wanted = {name: degree for name, degree in degrees.items() if degree is not None}
            if verify or source is not None or wanted:
                found = _examined_snapshot(found, wanted, source, verify, on_bytes)
            checkpoint = with_quantisation(found)
    except CheckpointError as error:  # the source's
        text = f"--source: {error}"
        if as_json:
            _print_json(_failure(masked(path), UnreadableError(text)))
        else:
            click.echo("\n".join(printable(line) for line in text.splitlines()), err=True)
        sys.exit(1)
    except (UnreadableError, NoWeightsError) as error:
        if as_json:
            _print_json(_failure(masked(path), error))
        else:
            click.echo("\n".join(printable(line) for line in str(error).splitlines()), err=True)
        sys.exit(2 if isinstance(error, UnreadableError) else 3)
    if as_json:
        _print_json(_document(masked(path), checkpoint))
    else:
        _print_human(checkpoint)
    sys.exit(1 if checkpoint.errors else 0)


def _examined_snapshot(
    found: Checkpoint,
    wanted: dict[str, int],
    source: str | None,
    verify: bool,
    on_bytes: Callable[[int], None] | None,
) -> Checkpoint:
    # Imported here: whoever looks at headers alone must not wait for torch.
    from bench.snapshot.examine import examined

    told = on_bytes if on_bytes is not None else lambda nbytes: None
    return examined(found, asked=wanted, source=source, verify=verify, on_bytes=told)


@contextmanager
def _progress(
    path: str, asked: Asked, times: int, *, more: bool
) -> Iterator[Callable[[int], None] | None]:
    """A running count on standard error while files are read whole, so many times, for people
    only; with the time left, unless `more` is read than the files at `path`."""
    if not ((times or more) and sys.stderr.isatty()):
        yield None
        return
    total = None if more else times * examine(path, format=asked).file_bytes
    columns = (TextColumn("checksums"), DownloadColumn(), TransferSpeedColumn())
    left = () if more else (TimeRemainingColumn(),)
    with Progress(*columns, *left, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("checksums", total=total)
        yield lambda read: progress.advance(task, read)


def _document(path: str, checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "ok": not checkpoint.errors,
        "error": None,
        "path": path,
        "root": checkpoint.root,
        "format": checkpoint.format,
        "files": [{"name": file.name, "bytes": file.size} for file in checkpoint.files],
        "tensors": len(checkpoint.tensors),
        "tensor_bytes": checkpoint.tensor_bytes,
        "storage_bytes": checkpoint.storage_bytes,
        "file_bytes": checkpoint.file_bytes,
        "dtypes": checkpoint.dtype_bytes,
        "ignored": [{"file": one.file, "reason": one.reason} for one in checkpoint.ignored],
        "problems": [
            {
                "code": problem.code,
                "file": problem.file,
                "tensor": problem.tensor,
                "message": problem.message,
                "severity": problem.severity,
            }
            for problem in checkpoint.problems
        ],
        "snapshot": checkpoint.facts,
    }


def _failure(path: str, error: Exception) -> dict[str, Any]:
    return {
        "ok": False,
        "error": str(error),
        "path": path,
        "root": None,
        "format": None,
        "files": [],
        "tensors": 0,
        "tensor_bytes": 0,
        "storage_bytes": 0,
        "file_bytes": 0,
        "dtypes": {},
        "ignored": [],
        "problems": [],
        "snapshot": None,
    }


def _print_json(document: dict[str, Any]) -> None:
    click.echo(json.dumps(_valid(document), indent=2))


def _valid(value: Any) -> Any:
    """File names that are no UTF-8 reach Python as lone surrogates, which JSON readers refuse."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, list):
        return [_valid(item) for item in value]
    if isinstance(value, dict):
        return {_valid(key): _valid(item) for key, item in value.items()}
    return value


def _print_human(checkpoint: Checkpoint) -> None:
    console = Console(highlight=False, soft_wrap=True, emoji=False, markup=False)

    def line(text: str, style: str = "") -> None:
        console.print(Text(printable(text), style=style))

    files = f"{count(len(checkpoint.files), 'file')} of {format_size(checkpoint.file_bytes)}"
    tensors = f"{count(len(checkpoint.tensors), 'tensor')} of {_bytes(checkpoint.tensor_bytes)}"
    line(f"{checkpoint.origin}: {checkpoint.format}, {files}, {tensors}", "bold")
    if checkpoint.storage_bytes != checkpoint.tensor_bytes:
        line(f"  shared storages counted once: {_bytes(checkpoint.storage_bytes)}")
    for dtype, nbytes in checkpoint.dtype_bytes.items():
        line(f"  {shown(dtype):<20} {_bytes(nbytes)}")
    if checkpoint.facts is not None:
        line(f"  {_state(checkpoint.facts)}")
    for one in checkpoint.ignored[:_MOST_IGNORED]:
        line(f"  left out: {one.file}: {one.reason}", "dim")
    if len(checkpoint.ignored) > _MOST_IGNORED:
        line(f"  left out: {len(checkpoint.ignored) - _MOST_IGNORED} more (all with --json)", "dim")
    for problem in checkpoint.problems:
        style = "red" if problem.severity == "error" else "yellow"
        line(f"  {problem.severity}: {problem.code}: {problem.message}", style)
    errors = len(checkpoint.errors)
    warnings = len(checkpoint.problems) - errors
    verdict = count(errors, "fault") if errors else "sound"
    line(verdict + (f", {count(warnings, 'warning')}" if warnings else ""), "bold")


def _state(facts: Mapping[str, Any]) -> str:
    """What a snapshot holds, of what."""
    layout, source = facts["layout"], facts["source"]
    return (
        f"rank {layout['rank']} of tp {layout['tp']}, pp {layout['pp']}, ep {layout['ep']}; "
        f"{facts['quantisation'] or 'not quantised'}, {facts['device_layout']} layout, "
        f"{facts['processing']}-processing; made from {shown(source['name'])} "
        f"({format_size(source['bytes'])}) by coldload {shown(facts['made']['coldload'])}"
    )


def _bytes(nbytes: int) -> str:
    return format_size(nbytes) if nbytes < 1024 else f"{format_size(nbytes)} ({nbytes:,} bytes)"
