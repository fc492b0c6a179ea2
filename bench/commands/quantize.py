"""`coldload quantize`: a quantised checkpoint from one that isn't.

The JSON document (one, also when it fails; then only ok, error, source and path are set):
    ok              whether the checkpoint is there
    error           why it isn't, else null
    source, path    as given; the new folder
    format, scheme
    files           a list of {name, bytes}
    quantised       weights that were
    ignored         modules that were left as they are
    tensor_bytes    {before, after}
    resumed         files that were there from a run before
    zero_scales     scales over nothing but zeros
    underflowed     scales that are too small for the scheme; their values are lost
    how             "torch.compile" or "row blocks"
    seconds         that it took, `compile_seconds` of them for compiling
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from bench.commands.make import progress_bar
from bench.quantize.plan import FORMATS, WRITABLE, Format, Plan, PlanError, plan
from bench.sizes import format_size
from loaders.checkpoint.manifest import (
    Checkpoint,
    CheckpointError,
    NoWeightsError,
    UnreadableError,
)
from loaders.checkpoint.modules import PatternError
from loaders.checkpoint.read import open_checkpoint
from loaders.checkpoint.text import count, printable
from loaders.store.address import is_address, masked

if TYPE_CHECKING:
    from bench.quantize.write import Written

_SCHEMES = sorted({name for names in WRITABLE.values() for name in names})


@click.command(short_help="Quantise a checkpoint into the engines' int8 and fp8 formats.")
@click.argument("source", metavar="SRC")
@click.argument("dest", metavar="DEST")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    required=True,
    help="compressed-tensors (vLLM, transformers) or ascend (msModelSlim's W8A8_DYNAMIC).",
)
@click.option(
    "--scheme",
    type=click.Choice(_SCHEMES),
    help="What shares a scale, and the dtype.  [default: int8-channel, or for ascend its own]",
)
@click.option(
    "--ignore",
    multiple=True,
    help="A module to leave as it is, or re: and an expression; repeatable. Heads, embeddings, "
    "norms and routers always are.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(
    source: str,
    dest: str,
    form: Format,
    scheme: str | None,
    ignore: tuple[str, ...],
    as_json: bool,
) -> None:
    """Quantise the checkpoint SRC into the new folder DEST. A run that was cut off goes on where it
    was when it is repeated; DEST appears when it is complete.

    Exit code: 0 done, 1 SRC has a fault or DEST can't be finished, 2 wrong usage or a path that
    can't be read or written, 3 there are no weights, 130 interrupted.
    """
    began = time.monotonic()
    try:
        for place in (source, dest):
            if is_address(place):
                raise PlanError(
                    f"{masked(place)}: expected a folder of this host, found an address"
                )
        checkpoint = open_checkpoint(source)
        planned = plan(checkpoint, format=form, scheme_name=scheme, ignore=ignore)
        written = _write(checkpoint, planned, dest)
    except KeyboardInterrupt:
        text = f"{dest}: interrupted; the same command goes on from there"
        _fail(text, 130, source, dest, as_json)
    except (PlanError, PatternError, UnreadableError) as error:
        _fail(str(error), 2, source, dest, as_json)
    except NoWeightsError as error:
        _fail(str(error), 3, source, dest, as_json)
    except CheckpointError as error:
        _fail(str(error), 1, source, dest, as_json)
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            raise
        _fail(str(error), code, source, dest, as_json)
    document = _document(checkpoint, planned, written, source, time.monotonic() - began)
    click.echo(json.dumps(document, indent=2) if as_json else _sentence(document))


def _write(checkpoint: Checkpoint, planned: Plan, dest: str) -> Written:
    from bench.quantize.write import write_quantised

    with progress_bar("quantising") as progress:
        return write_quantised(checkpoint, planned, dest, progress=progress)


def _exit_code(error: Exception) -> int | None:
    """Of what the writing part raises; it is imported only once there is something to write."""
    from bench.quantize.write import TargetError, WriteError
    from loaders.io.errors import LoadError
    from loaders.quantise.faults import QuantiseError

    if isinstance(error, TargetError):
        return 2
    return 1 if isinstance(error, (WriteError, LoadError, QuantiseError)) else None


def _fail(text: str, code: int, source: str, dest: str, as_json: bool) -> None:
    click.echo("\n".join(printable(line) for line in text.splitlines()), err=True)
    if as_json:
        document = {"ok": False, "error": text, "source": masked(source), "path": masked(dest)}
        click.echo(json.dumps(document, indent=2))
    sys.exit(code)


def _document(
    checkpoint: Checkpoint, planned: Plan, written: Written, source: str, seconds: float
) -> dict[str, Any]:
    return {
        "ok": True,
        "error": None,
        "source": source,
        "path": str(written.folder),
        "format": planned.format,
        "scheme": planned.scheme.name,
        "files": [{"name": name, "bytes": size} for name, size in written.files.items()],
        "quantised": planned.quantised,
        "ignored": list(planned.ignored),
        "tensor_bytes": {"before": checkpoint.tensor_bytes, "after": planned.nbytes},
        "resumed": written.resumed,
        "zero_scales": written.counts.zero,
        "underflowed": written.counts.underflowed,
        "how": written.how,
        "seconds": round(seconds, 3),
        "compile_seconds": round(written.compile_seconds, 3),
    }


def _sentence(document: dict[str, Any]) -> str:
    sizes = document["tensor_bytes"]
    text = (
        f"{printable(document['path'])}: {document['format']} {document['scheme']}, "
        f"{count(document['quantised'], 'weight')} quantised, {format_size(sizes['before'])} -> "
        f"{format_size(sizes['after'])}, {document['seconds']:.1f} s ({document['how']}, "
        f"{document['compile_seconds']:.1f} s of it compiling)"
    )
    if document["resumed"]:
        text += f"\n{count(document['resumed'], 'file')} from a run before"
    if document["zero_scales"]:
        text += f"\n{count(document['zero_scales'], 'scale')} over nothing but zeros"
    if document["underflowed"]:
        text += f"\nwarning: {count(document['underflowed'], 'scale')} too small for this scheme; "
        text += "what is under them became 0"
    return text
