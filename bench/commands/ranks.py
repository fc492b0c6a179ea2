"""`coldload ranks`: several ranks on one storage, cold, each way of sharing it.

The JSON document (one, also after a failure; then only ok, error and model are set):
    ok        whether every case was measured and every rank held what it must
    error     why nothing was measured, else null
    model     as given; null with --merge
    run       the folder with the records
    ways      a list, fastest first, of {way, ranks, passes, rate (GB/s: bytes kept by all ranks by
              the time from the earliest start to the latest end), range, first_done, last_done,
              fetched (bytes from the device, all ranks, by the bytes of the files), group_fetched,
              states, collective, by_rank}
    failed    a list of {way, pass, reason}
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click

from bench.console import console
from bench.ranks.merge import merged
from bench.ranks.show import show, summary
from bench.record.records import RecordsError, Sample, Writer, read_run
from bench.settings import SettingsError
from bench.synth.place import MakeError
from bench.synth.scale import ScaleError
from bench.synth.shapes import ShapeError
from loaders.checkpoint.manifest import CheckpointError, NoWeightsError, UnreadableError
from loaders.checkpoint.text import printable
from loaders.slicing.errors import PlanError
from loaders.store.address import masked

WAYS = ("read-all", "read-slices", "scatter", "prefetch")


@click.command(short_help="Let several ranks load from one storage at once, on one or many nodes.")
@click.argument("targets", nargs=-1, required=True, metavar="MODEL | RUN...")
@click.option("--nproc", type=click.IntRange(1, 1024), help="Ranks on this node.  [default: 2]")
@click.option("--nnodes", type=click.IntRange(1), default=1, show_default=True)
@click.option("--node-rank", type=click.IntRange(0), default=0, show_default=True)
@click.option("--rdzv-endpoint", metavar="HOST:PORT", help="Of node 0, for more than one node.")
@click.option(
    "--way", "ways", multiple=True, type=click.Choice(("all", *WAYS)), help="[default: all]"
)
@click.option("--ep", is_flag=True, help="Whole experts on each rank (expert parallel).")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda or npu, one a rank.")
@click.option("--storage", metavar="DIR", help="Copy the model there first.")
@click.option("--size", default="1GiB", show_default=True, help="Of a built-in shape.")
@click.option("--passes", type=click.IntRange(1), default=3, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order of the ways.")
@click.option("--threads", type=click.IntRange(1), help="Of a rank.  [default: its cores, 2 least]")
@click.option("--run-dir", metavar="DIR", help="[default: runs/<UTC time>]")
@click.option("--timeout", type=click.FloatRange(min=0.1), help="Seconds that a case may take.")
@click.option("--merge", is_flag=True, help="Make one run of the RUNs of the nodes.")
@click.option("-o", "--output", metavar="RUN", help="The merged run's new folder.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(targets: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Start ranks with torchrun, let them load MODEL (a path, a Hub id or a built-in shape) from
    one storage at the same moment, cold, and tell when each was done. Ways: read-all (each rank
    maps all files, as engines do), read-slices (each reads what it keeps), scatter (each file byte
    is read once and sent on), prefetch (rank r reads files[r::ranks] ahead while mapping them).

    Exit code: 0 done, 1 a case failed or the checkpoint is faulty, 2 wrong usage, an unreadable
    MODEL, or one that can't be divided so, 3 there are no weights, 130 interrupted.
    """
    model = None if given["merge"] else masked(targets[0])
    samples: Sequence[Sample]
    try:
        with _ended_by_signals():
            if given["merge"]:
                folder, samples = _merge(targets, given["output"])
            else:
                folder, samples = _measure(targets, as_json, given)
    except KeyboardInterrupt:
        click.echo("interrupted; no rank is left, and what was measured is in its run", err=True)
        sys.exit(130)
    except NoWeightsError as error:
        _fail(model, as_json, 3, str(error))
    except (CheckpointError, MakeError) as error:
        _fail(model, as_json, 1, str(error))
    except (UnreadableError, PlanError, ShapeError, ScaleError, SettingsError) as error:
        _fail(model, as_json, 2, str(error))
    except (RecordsError, OSError, ValueError) as error:
        _fail(model, as_json, 2, str(error))
    failed = [one for one in samples if one.status != "ok"]
    if as_json:
        click.echo(json.dumps(_document(model, folder, samples), indent=2))
    else:
        show(samples, console())
        click.echo(f"Records: {printable(str(folder))}")
    sys.exit(1 if failed or not samples else 0)


def _document(model: str | None, folder: Path, samples: Sequence[Sample]) -> dict[str, Any]:
    failed = [one for one in samples if one.status != "ok"]
    return {
        "ok": bool(samples) and not failed,
        "error": None,
        "model": model,
        "run": str(folder),
        "ways": summary(samples),
        "failed": [
            {"way": one.loader, "pass": one.pass_number, "reason": one.reason} for one in failed
        ],
    }


def _fail(model: str | None, as_json: bool, code: int, text: str) -> NoReturn:
    if as_json:
        click.echo(json.dumps({"ok": False, "error": text, "model": model}, indent=2))
    else:
        click.echo("\n".join(printable(line) for line in text.splitlines()), err=True)
    sys.exit(code)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Lets a termination or a lost terminal end the ranks as Ctrl-C does."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _merge(targets: Sequence[str], output: str | None) -> tuple[Path, tuple[Sample, ...]]:
    if output is None:
        raise SettingsError("--merge: expected the merged run's new folder with -o")
    runs = [read_run(Path(target)) for target in targets]
    folder = Path(output)
    writer = Writer(folder)
    try:
        return folder, merged(runs, writer)
    finally:
        writer.close()


def _measure(
    targets: Sequence[str], as_json: bool, given: dict[str, Any]
) -> tuple[Path, Sequence[Sample]]:
    if len(targets) != 1:
        raise SettingsError(f"expected one MODEL, found {len(targets)}; several RUNs need --merge")
    if given["output"] is not None:
        raise SettingsError("-o: names a merged run; use --run-dir here, or say --merge")
    from bench.ranks.course import run  # torch is in it
    from bench.ranks.ready import make_ready

    def say(text: str) -> None:
        if sys.stderr.isatty() and not as_json:
            click.echo(printable(text), err=True)

    course, folder = make_ready(targets[0], given, say)
    writer = Writer(folder)
    try:
        run(course, writer)
    finally:
        writer.close()
    return folder, course.samples
