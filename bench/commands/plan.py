"""`coldload plan`: what each rank of a divided model reads and keeps, and its room for KV blocks.

The JSON document (sizes in bytes; after a failure only ok, error and model are set):
    ok, error        error says why there is no plan, else null
    model            as given
    engine, rules    whose rules; the table of names that was used
    degrees          {tp, pp, dp, ep, world}
    placement        of the experts under ep, else null
    file_bytes, tensor_bytes    of all files; of all tensors in them
    skipped          {reason: bytes} that no rank keeps (draft layers, tied heads)
    kept_bytes       by all ranks together
    replication      kept_bytes / (tensor_bytes - skipped)
    ranks            a list of {rank, dp_rank, pp_rank, tp_rank, ep_rank, layers, experts,
                     kept_bytes, padding_bytes, after_load_bytes, weights_bytes, read_bytes,
                     by_class};
                     weights_bytes = kept + padding + after_load (copies that MLA makes);
                     read_bytes {all, slice, slice_pages, ep_filter}; slice_pages counts the pages
                     of 4 KiB around the slices, about
    assembly         {unfilled: a list of {parameter, lacks}, surplus: {tensor: why}, tied: names,
                     draft: {layers, tensors, bytes} or null}
    kv               {block_bytes, pool_bytes, num_gpu_blocks, num_cpu_blocks, tokens, block_size,
                     concurrency} of the worker with the fewest blocks; null where not known
    weights          with --weights-gb {given_bytes, meaning, predicted_bytes, total_bytes,
                     deviation, verdict}; meaning "per worker", "whole model" or "neither"
    matches          with --weights-gb a list of {tp, pp, dp, ep, world, predicted_bytes,
                     least_bytes, most_bytes, deviation}, the nearest first
    notes            sentences: what was assumed, what an engine would do otherwise
    parameters       with --rank: its parameters and the pieces that fill them
"""

from __future__ import annotations

import json
import sys
from typing import Any, get_args

import click

from bench.console import console
from bench.plan.plan_text import lines
from bench.plan.planning import GIB, Memory, Question, answer
from bench.sizes import SizeError, parse_size
from bench.synth.manifest import manifest_of
from bench.synth.shapes import DTYPES, ShapeError, load_shape, shape_names, with_dtype
from loaders.checkpoint.manifest import (
    Checkpoint,
    CheckpointError,
    NoWeightsError,
    UnreadableError,
)
from loaders.checkpoint.read import open_checkpoint
from loaders.checkpoint.resolve import resolve_model
from loaders.checkpoint.text import printable
from loaders.slicing.engines import DEFAULT, engine_of
from loaders.slicing.errors import ConfigError, PlanError
from loaders.slicing.placement import Placement
from loaders.slicing.plan import Degrees
from loaders.slicing.rules import read_table
from loaders.store.address import masked

_LEAST_MEMORY = 1 << 20  # below that, a figure without a unit was meant to be GiB


@click.command(
    epilog=f"Shapes: {', '.join(shape_names())}.", short_help="Say what each rank keeps."
)
@click.argument("model")
@click.option("--tp", type=int, help="Tensor-parallel ranks.  [default: 1]")
@click.option("--pp", type=int, help="Pipeline stages.  [default: 1]")
@click.option("--dp", type=int, help="Data-parallel replicas.  [default: 1]")
@click.option("--ep", type=int, help="Expert-parallel ranks: tp x dp, or 1 for none.  [default: 1]")
@click.option("--engine", "engine_name", default=DEFAULT, show_default=True, metavar="NAME-VERSION")
@click.option(
    "--placement", type=click.Choice(get_args(Placement)), default="linear", show_default=True
)
@click.option("--rules", metavar="FILE.toml", help="A table of rules for names not known here.")
@click.option("--dtype", type=click.Choice(DTYPES), help="Of a shape's weights.")
@click.option("--rank", type=int, help="List this rank's parameters and their pieces, too.")
@click.option("--weights-gb", type=float, metavar="N", help="A figure that an engine printed.")
@click.option("--device-memory", metavar="SIZE", help="Of one device, as in 64GiB.")
@click.option("--gpu-memory-utilization", "utilisation", default=0.9, show_default=True)
@click.option("--peak", metavar="SIZE", help="Weights, activations, graphs.  [default: weights]")
@click.option("--swap-space", metavar="GIB", help="Host memory for KV blocks, GiB unless it says.")
@click.option("--block-size", default=16, show_default=True, help="Tokens in a KV block.")
@click.option("--max-model-len", "length", type=int, help="[default: the model's]")
@click.option("--kv-dtype", default="auto", show_default=True, help="auto, fp8, bfloat16, ...")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(model: str, as_json: bool, **options: Any) -> None:
    """Say which bytes of MODEL (a path, an address, a Hub id or a built-in shape) each rank keeps
    when an engine divides it, from headers and config.json alone.

    With --weights-gb: is that figure per card or total? With --device-memory: how many KV blocks.

    Exit code: 0 done, 1 the checkpoint is faulty or leaves parameters unfilled, 2 wrong usage, an
    unreadable MODEL, or degrees that don't divide it, 3 there are no weights.
    """
    try:
        document = answer(_checkpoint(model, options["dtype"]), _question(options))
    except CheckpointError as error:
        _fail(model, as_json, 1, str(error))
    except NoWeightsError as error:
        _fail(model, as_json, 3, str(error))
    except ConfigError as error:
        _fail(model, as_json, 1, str(error))
    except (UnreadableError, PlanError, ShapeError, ValueError) as error:
        _fail(model, as_json, 2, str(error))
    document = {"ok": True, "error": None, "model": masked(model), **document}
    if as_json:
        click.echo(json.dumps(document, indent=2))
    else:
        for line in lines(document):
            console().print(line, markup=False)
    if document["assembly"]["unfilled"]:
        sys.exit(1)


def _fail(model: str, as_json: bool, code: int, text: str) -> None:
    if as_json:
        click.echo(json.dumps({"ok": False, "error": text, "model": masked(model)}, indent=2))
    else:
        click.echo("\n".join(printable(line) for line in text.splitlines()), err=True)
    sys.exit(code)


def _checkpoint(model: str, dtype: str | None) -> Checkpoint:
    found = resolve_model(model, shapes=shape_names())
    if found.shape is not None:
        return manifest_of(with_dtype(load_shape(found.shape), dtype))
    if dtype is not None:
        raise ValueError(f"--dtype: only a built-in shape can have another, {model} is none")
    return open_checkpoint(found.address or found.path or model, origin=model)


def _question(options: dict[str, Any]) -> Question:
    given = {name: options[name] for name in ("tp", "pp", "dp", "ep")}
    figure = options["weights_gb"]
    if figure is not None and not 0 < figure < 1 << 30:
        raise ValueError(f"--weights-gb: expected more than 0 GB, found {figure}")
    for name, least in (("block_size", 1), ("length", 1)):
        if options[name] is not None and options[name] < least:
            flag = {"block_size": "--block-size", "length": "--max-model-len"}[name]
            raise ValueError(f"{flag}: expected {least} or more, found {options[name]}")
    if not 0 < options["utilisation"] <= 1:
        raise ValueError(
            "--gpu-memory-utilization: expected more than 0, at most 1, found "
            f"{options['utilisation']}"
        )
    return Question(
        degrees=Degrees(**{name: 1 if value is None else value for name, value in given.items()}),
        engine=engine_of(options["engine_name"]),
        placement=options["placement"],
        stated=any(value is not None for value in given.values()),
        memory=Memory(
            total=_size("--device-memory", options["device_memory"]),
            utilisation=options["utilisation"],
            peak=_size("--peak", options["peak"]),
            swap=_swap(options["swap_space"]),
            block_size=options["block_size"],
            length=options["length"],
            kv_dtype=options["kv_dtype"],
        ),
        weights=None if figure is None else round(figure * GIB),
        rank=options["rank"],
        table=None if options["rules"] is None else read_table(options["rules"]),
    )


def _size(flag: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        size = parse_size(text)
    except SizeError as error:
        raise ValueError(f"{flag}: {error}") from error
    if size < _LEAST_MEMORY:
        raise ValueError(f"{flag}: {text} is {size} bytes; say the unit, as in {text.strip()}GiB")
    return size


def _swap(text: str | None) -> int | None:
    """As the engine's own option: GiB where there is no unit, and 0 for none."""
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        return _size("--swap-space", text)
    if not 0 <= number < 1 << 30:
        raise ValueError(f"--swap-space: expected 0 or more GiB, found {text}")
    return round(number * GIB)
