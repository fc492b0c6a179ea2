"""`coldload snapshot`: a model's assembled state, so that a start only has to read it.

The JSON document (one, also when it fails; then only ok, error, model and path are set):
    ok, error       whether it is there; why not, else null
    model, path     the source as given; the folder
    format          "snapshot" or "sharded-state"
    layout          {tp, pp, ep}
    ranks           a list of {rank, parameters}
    processing      "pre" or "post": before or after what an engine does to loaded weights
    quantisation, device_layout    as asked for
    quantised_by    "torch.compile" or "row blocks", null where nothing was quantised
    files           a list of {name, bytes}
    bytes           of all parameters
    seconds         that all of it took: digest of the source, making, writing, reading back
    digest_seconds  of these, the source's digest
"""

from __future__ import annotations

import json
import sys
from typing import Any, NoReturn

import click

from bench.commands.make import ended_by_signals, progress_bar
from bench.sizes import SizeError, format_size, parse_size
from bench.synth.place import MakeError, PlaceError
from loaders.checkpoint.manifest import (
    Checkpoint,
    CheckpointError,
    NoWeightsError,
    UnreadableError,
)
from loaders.checkpoint.read import open_checkpoint
from loaders.checkpoint.resolve import resolve_model
from loaders.checkpoint.text import count, printable
from loaders.io.errors import LoadError
from loaders.quantise.schemes import SCHEMES
from loaders.slicing.errors import ConfigError, PlanError
from loaders.slicing.plan import Degrees
from loaders.snapshot.errors import NotAsWrittenError, StateError
from loaders.snapshot.format import DEVICE_LAYOUTS
from loaders.store.address import is_address, masked


@click.command(
    epilog=f"Schemes: {', '.join(SCHEMES)}.", short_help="Keep a rank's assembled state."
)
@click.argument("model")
@click.argument("folder", metavar="DEST")
@click.option("--tp", type=click.IntRange(1), default=1, show_default=True, help="Ranks.")
@click.option("--pp", type=click.IntRange(1), default=1, show_default=True, help="Stages.")
@click.option("--ep", type=click.IntRange(1), default=1, show_default=True, help="1 or tp.")
@click.option("--rank", default="all", show_default=True, help="One of them, or all.")
@click.option(
    "--quantise", type=click.Choice(list(SCHEMES)), metavar="SCHEME", help="Linear layers."
)
@click.option(
    "--layout",
    type=click.Choice(DEVICE_LAYOUTS),
    default="plain",
    show_default=True,
    help="Of quantised weights: [out, in], its transpose, or FRACTAL_NZ.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["snapshot", "sharded-state"]),
    default="snapshot",
    show_default=True,
    help="sharded-state: the engines' model-rank-N-part-M.safetensors.",
)
@click.option("--part-size", default="5GiB", show_default=True, help="Of a sharded-state's files.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(model: str, folder: str, as_json: bool, **options: Any) -> None:
    """Make the new folder DEST with what the ranks of MODEL (a folder, a file or a Hub id) hold
    once it is loaded: sliced, fused, and where asked for quantised and in a device's layout.

    Exit code: 0 done, 1 it could not be made (nothing is left behind), 2 wrong usage or an
    unreadable MODEL, 3 there are no weights, 130 interrupted.
    """
    # Imported here, with torch: `coldload --help` must not wait for it.
    from loaders.quantise.faults import QuantiseError

    failed = _Failing(model, folder, as_json)
    try:
        if is_address(folder):
            failed(2, f"{masked(folder)}: expected a folder of this host, found an address")
        document = _made(model, folder, options)
    except KeyboardInterrupt:
        click.echo(f"{printable(folder)}: interrupted; nothing was left behind", err=True)
        sys.exit(130)
    except NoWeightsError as error:
        failed(3, str(error))
    except (CheckpointError, ConfigError) as error:
        failed(1, str(error))
    except (UnreadableError, PlaceError, PlanError, StateError, SizeError) as error:
        failed(2, str(error))
    except (MakeError, LoadError, QuantiseError, NotAsWrittenError, OSError) as error:
        failed(1, str(error))
    if as_json:
        click.echo(json.dumps(document, indent=2))
    else:
        click.echo(_sentence(document))


def _made(model: str, folder: str, options: dict[str, Any]) -> dict[str, Any]:
    checkpoint, name = _source(model)
    part_bytes = parse_size(options["part_size"])
    from bench.snapshot.make import Request, make_snapshot

    degrees = Degrees(tp=options["tp"], pp=options["pp"], ep=options["ep"])
    request = Request(
        degrees=degrees,
        ranks=_ranks(options["rank"]),
        quantise=options["quantise"],
        layout=None if options["layout"] == "plain" else options["layout"],
        form=options["form"],
        part_bytes=part_bytes,
    )
    with ended_by_signals(), progress_bar("snapshot") as progress:
        made = make_snapshot(checkpoint, folder, request, name=name, progress=progress)
    return {
        "ok": True,
        "error": None,
        "model": masked(model),
        "path": folder,
        "format": request.form,
        "layout": {"tp": degrees.tp, "pp": degrees.pp, "ep": degrees.ep},
        "ranks": [{"rank": rank, "parameters": n} for rank, n in made.parameters.items()],
        "processing": "post" if request.quantise or request.layout else "pre",
        "quantisation": request.quantise,
        "device_layout": request.layout or "plain",
        "quantised_by": made.how,
        "files": [{"name": name, "bytes": size} for name, size in made.files.items()],
        "bytes": made.nbytes,
        "seconds": round(made.seconds, 3),
        "digest_seconds": round(made.digest_seconds, 3),
    }


def _source(model: str) -> tuple[Checkpoint, str]:
    """The checkpoint, and what it is to be called."""
    resolved = resolve_model(model, shapes=())
    if resolved.path is None:
        raise UnreadableError(
            f"{masked(model)}: expected a folder of this host, found an address; copy it here first"
        )
    checkpoint = open_checkpoint(resolved.path, origin=model)
    return checkpoint, model if resolved.kind == "hub" else checkpoint.root.rpartition("/")[2]


def _ranks(text: str) -> tuple[int, ...]:
    if text == "all":
        return ()
    if not text.isdecimal():
        raise StateError(f"--rank: expected a number or all, found {text!r}")
    return (int(text),)


class _Failing:
    """Says why nothing was made, and ends."""

    def __init__(self, model: str, folder: str, as_json: bool) -> None:
        self._model, self._folder, self._as_json = masked(model), masked(folder), as_json

    def __call__(self, code: int, text: str) -> NoReturn:
        click.echo("\n".join(printable(line) for line in text.splitlines()), err=True)
        if self._as_json:
            value = {"ok": False, "error": text, "model": self._model, "path": self._folder}
            click.echo(json.dumps(value, indent=2))
        sys.exit(code)


def _sentence(document: dict[str, Any]) -> str:
    degrees = ", ".join(f"{key} {value}" for key, value in document["layout"].items())
    ranks = count(len(document["ranks"]), "rank")
    state = f"{document['quantisation'] or 'not quantised'}, {document['device_layout']} layout"
    path = document["path"]
    if document["format"] == "sharded-state" and len(document["ranks"]) > 1:
        path = f"{path}/{document['files'][0]['name']}"  # the folder alone names no rank
    return (
        f"{printable(document['path'])}: {document['format']}, {ranks} of {degrees}, "
        f"{format_size(document['bytes'])}, {state}; written, read back and compared in "
        f"{document['seconds']:.1f} s\n"
        f"Measure it: pytest --benchmark-only --model={printable(path)}"
    )
