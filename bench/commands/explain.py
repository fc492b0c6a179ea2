"""`coldload explain`: from an engine's start-up log to a cold-start record, and what to do.

The JSON document (an array of them for several logs) is the record (see bench/explain/record.py:
settings, `status`, `failure`, ranks, `phases`, and `evidence` with the line numbers of each field)
and beside it
    log         as given
    timeline    {wall, stages: [{name, seconds, share, source, lines, workers, slowest, within}],
                unexplained}
    diagnosis   a list of {code, text, evidence, next_step}
    savings     a list of {remedy, touches, at_most, expected, cost}
    isolation, model_fit, rates (or rates_reason: why there are none), fleet    where asked for
or {log, error} for a log that has no engine lines or can't be read.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import yaml

from bench.console import console
from bench.explain.build import build
from bench.explain.document import NoEngineLinesError, Replicas, document, read
from bench.explain.isolate import Way, isolate, twins_of
from bench.explain.rates import measured_rates
from bench.explain.record import ColdStart
from bench.explain.secrets import without_secrets
from bench.explain.settings import NAMES
from bench.explain.show import show
from bench.explain.state import State
from bench.explain.timeline import Timeline
from bench.record.records import RecordsError
from bench.sizes import SizeError, parse_size
from loaders.checkpoint.manifest import Checkpoint, NoWeightsError, UnreadableError
from loaders.checkpoint.read import examine
from loaders.checkpoint.text import printable
from loaders.store.address import is_address, masked


class _Rate(click.ParamType[float]):
    name = "rate"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            return float(parse_size(re.sub(r"/s(ec)?$", "", str(value).strip())))
        except SizeError as error:
            self.fail(f"{error}; as in 25GB/s", param, ctx)


@click.command("explain", short_help="An engine's start-up log: where the time went, what to do.")
@click.argument("logs", nargs=-1, required=True, metavar="LOG [LOG ...]")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.option("--yaml", "as_yaml", is_flag=True, help="The same as YAML.")
@click.option("--model", type=click.Path(), help="The checkpoint, to compare its bytes.")
@click.option(
    "--record",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the record to FILE: YAML if it ends in .yaml or .yml, else JSON.",
)
@click.option(
    "--set",
    "given",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting that comes before what the log says.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the timeline as an SVG picture.",
)
@click.option("--eager", help="The log of the same start with --enforce-eager.")
@click.option("--dummy", help="The log of the same start with --load-format dummy.")
@click.option("--override", help="The log of the same start with --num-gpu-blocks-override.")
@click.option(
    "--run",
    "run_folder",
    type=click.Path(path_type=Path),
    help="A run of this suite on the same host: expected savings by its rates.",
)
@click.option("--replicas", type=click.IntRange(min=1), help="What it means for so many replicas.")
@click.option("--shared-bandwidth", type=_Rate(), help="What they share, as in 25GB/s.")
@click.option("--starts-per-day", type=click.FloatRange(min=0), default=1.0, show_default=True)
@click.pass_context
def command(
    ctx: click.Context,
    logs: tuple[str, ...],
    as_json: bool,
    as_yaml: bool,
    model: str | None,
    record: Path | None,
    given: tuple[str, ...],
    plot: Path | None,
    eager: str | None,
    dummy: str | None,
    override: str | None,
    run_folder: Path | None,
    replicas: int | None,
    shared_bandwidth: float | None,
    starts_per_day: float,
) -> None:
    """Explain the start-up LOGs of an inference engine (vLLM, vllm-ascend); `-` is standard input,
    also live: vllm serve ... 2>&1 | coldload explain -

    Exit codes: 0 done (also where the start failed), 2 wrong usage or an unreadable path,
    3 no engine lines found.
    """
    if as_json and as_yaml:
        raise click.UsageError("--json and --yaml: choose one")
    for log in filter(is_address, logs):
        raise click.UsageError(f"{masked(log)} is an address; fetch the log and give the file")
    if plot and len(logs) > 1:
        raise click.UsageError("--plot draws one log; give one LOG")
    if shared_bandwidth and not replicas:
        raise click.UsageError("--shared-bandwidth is for --replicas N")
    settings = _settings(given)
    compared: dict[Way, str | None] = {"eager": eager, "dummy": dummy, "override": override}
    fleet = (
        Replicas(count=replicas, shared_bandwidth=shared_bandwidth, starts_per_day=starts_per_day)
        if replicas
        else None
    )
    code, documents, records = 0, [], []
    try:
        checkpoint = _checkpoint(model)
        others = {way: build(read(path)) for way, path in compared.items() if path}
        for path in logs:
            try:
                state = read(path)
            except NoEngineLinesError as error:
                code = 3
                documents.append({"log": path, "error": str(error)})
                continue
            found, start, times = _explain(
                path, state, settings, checkpoint, run_folder, fleet, others
            )
            documents.append(found)
            records.append(without_secrets(start.to_json()))
            if plot:
                _draw(plot, times, path)
        if record and records:
            _write(record, records[0] if len(logs) == 1 else records)
    except (OSError, RecordsError, UnreadableError, NoWeightsError, NoEngineLinesError) as error:
        code = 3 if isinstance(error, (NoEngineLinesError, NoWeightsError)) else 2
        give = "; give the log that the engine printed"
        text = (
            f"{error.filename}: {error.strerror}{give if error.filename in logs else ''}"
            if isinstance(error, OSError) and error.filename
            else str(error)
        )
        documents = [{"log": logs[0], "error": text}]
    _print(documents, len(logs), as_json, as_yaml)
    ctx.exit(code)


def _explain(
    path: str,
    state: State,
    settings: dict[str, str],
    checkpoint: Checkpoint | None,
    run_folder: Path | None,
    fleet: Replicas | None,
    others: dict[Way, ColdStart],
) -> tuple[dict[str, Any], ColdStart, Timeline]:
    start = build(state, settings)
    rates = measured_rates(run_folder, state, start) if run_folder else None
    found, times = document(path, state, start, checkpoint=checkpoint, rates=rates, replicas=fleet)
    if run_folder and rates is None:
        found["rates_reason"] = f"{run_folder} has no cold reads that were seen to be cold"
    if others:
        found["isolation"] = [
            isolate(start, other, way, twins_of(way, others)).to_json()
            for way, other in others.items()
        ]
    return found, start, times


def _settings(given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in given:
        key, mark, value = text.partition("=")
        key = key.strip().lstrip("-").replace("-", "_")
        if not mark or key not in NAMES:
            raise click.UsageError(
                f"--set {text!r}: expected KEY=VALUE with one of {', '.join(NAMES)}"
            )
        found[key] = value
    return found


def _checkpoint(path: str | None) -> Checkpoint | None:
    return examine(path) if path else None


def _draw(path: Path, times: Timeline, log: str) -> None:
    from bench.explain.plot import plot  # matplotlib takes a second to import

    if not any(stage.within is None for stage in times.stages):
        raise NoEngineLinesError(f"{log}: no stage has a time: nothing to draw")
    path.write_text(plot(times, f"Start-up: {log}").svg)


def _write(path: Path, found: Any) -> None:
    as_yaml = path.suffix in (".yaml", ".yml")
    path.write_text(_yaml(found) if as_yaml else json.dumps(found, indent=2) + "\n")


def _yaml(found: Any) -> str:
    return str(yaml.safe_dump(found, sort_keys=False, allow_unicode=True))


def _print(documents: list[dict[str, Any]], asked: int, as_json: bool, as_yaml: bool) -> None:
    if as_json or as_yaml:
        found = documents[0] if asked == 1 else documents
        click.echo(json.dumps(found, indent=2) if as_json else _yaml(found).rstrip())
        return
    out = console()
    for number, one in enumerate(documents):
        if "error" in one:
            click.echo("\n".join(map(printable, one["error"].splitlines())), err=True)
            continue
        if number:
            out.print()
        show(out, one)
