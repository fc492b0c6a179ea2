"""Our best way to a rank's parameters against an engine's own, in turns on this machine:

    python -m bench.against_engine MODEL --engine-python ENV/bin/python [--passes 4] [--unbound]

MODEL is a safetensors checkpoint's folder, ENV an environment with vLLM (its CPU build; tried with
0.32). Each pass starts the engine as `vllm serve` starts it, up to the end of loading weights, and
our own way in a process of its own. Both begin with memory of the checkpoint's size touched and
given back, so that neither inherits the other's, and the files out of the page cache; a pass in
which either didn't fetch them counts as none. What both end with, the engine's fused parameters by
name, dtype, shape and digest, must be equal. The engine binds its threads to cores by itself and
leaves one free; with --unbound it may use all of them.

Exit code: 0 done, 1 contents differ or a pass failed, 2 wrong usage.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from bench import engine_side
from bench.measuring.pagecache import evict
from bench.record.stats import paired_ratio, spread
from loaders.assembly.overlapped import overlapped
from loaders.assembly.values import Options
from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.read import open_checkpoint
from loaders.device.cpu import HostDevice
from loaders.io.sources import Residents
from loaders.slicing.build import plan_rank
from loaders.slicing.model import model_of
from loaders.slicing.plan import Degrees

ROOT = Path(__file__).parents[1]
START = (
    "import sys; from vllm import LLM; "
    "LLM(model=sys.argv[1], skip_tokenizer_init=True, enforce_eager=True, max_model_len=512, "
    "load_format='safetensors', gpu_memory_utilization=0.3, "
    "worker_extension_cls='engine_side.Extension')"
)
TIMEOUT = 120.0
COLD = 0.95
"""The part of the files that a cold load must fetch from the device."""


class PassError(Exception):
    """A pass that can't be counted, and why."""


def ours(model: str) -> dict[str, Any]:
    """Our way once, in this process, cold; the same facts as bench.engine_side reports."""
    checkpoint = open_checkpoint(model)
    cores = len(os.sched_getaffinity(0))
    options = Options(readers=max(4, 2 * cores), open_source=Residents().open)
    engine_side.touch_and_free(checkpoint.file_bytes)
    evict([Path(file.path) for file in checkpoint.files])
    before, began = engine_side.fetched(), time.perf_counter()
    # The plan, too, is made within the time: the engine also finds out where tensors go as it goes.
    parameters = plan_rank(model_of(checkpoint), Degrees(), 0).parameters
    done = overlapped(checkpoint, parameters, HostDevice(), options)
    seconds = time.perf_counter() - began
    named = [(one.name, target) for one, target in zip(parameters, done.targets, strict=True)]
    return {
        "seconds": seconds,
        "fetched": engine_side.fetched() - before,
        "digests": engine_side.digests(named),
    }


def engines(python: str, checkpoint: Checkpoint, work: Path, *, unbound: bool) -> dict[str, Any]:
    """The engine's way once, in processes of its own. PassError with what it said last."""
    report, log = work / "report.json", work / "engine.log"
    report.unlink(missing_ok=True)
    env = {
        **os.environ,
        engine_side.REPORT: str(report),
        engine_side.FILES: json.dumps([file.path for file in checkpoint.files]),
        "PYTHONPATH": str(Path(engine_side.__file__).parent),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        **({"VLLM_CPU_OMP_THREADS_BIND": "nobind"} if unbound else {}),
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [python, "-c", START, checkpoint.root],
            env=env,
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    deadline = time.monotonic() + TIMEOUT
    try:
        while not report.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                last = log.read_text(errors="replace").strip().splitlines()[-3:]
                raise PassError(f"the engine loaded nothing: {' | '.join(last) or 'no message'}")
            time.sleep(0.05)
        found: dict[str, Any] = json.loads(report.read_text())
        return found
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The engine's processes are one session; those that are left end with it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()


def differences(engine: dict[str, str], own: dict[str, str]) -> list[str]:
    """Parameters that only one of them has, or that aren't equal."""
    return [
        f"{name}: engine {engine.get(name, 'has none')}, ours {own.get(name, 'has none')}"
        for name in sorted({*engine, *own})
        if engine.get(name) != own.get(name)
    ]


def checked(found: dict[str, Any], who: str, size: int) -> float:
    """Its seconds; PassError if it wasn't cold."""
    if found["fetched"] < COLD * size:
        raise PassError(f"{who}: fetched {found['fetched']:,} of {size:,} bytes: it wasn't cold")
    return float(found["seconds"])


def lines(pairs: Sequence[tuple[float, float]]) -> list[str]:
    """What the passes show: seconds of (engine, ours)."""
    engine, own = ({number: pair[side] for number, pair in enumerate(pairs, 1)} for side in (0, 1))
    ratio = paired_ratio(engine, own)
    shown = [spread(list(side.values())) for side in (engine, own)]
    if ratio is None or shown[0] is None or shown[1] is None:
        return ["no pass to compare"]
    return [
        f"engine {shown[0].median:.2f} s ({shown[0].low:.2f} to {shown[0].high:.2f}), ours "
        f"{shown[1].median:.2f} s ({shown[1].low:.2f} to {shown[1].high:.2f})",
        f"ours is {ratio.median:.2f} x as fast ({ratio.low:.2f} to {ratio.high:.2f}, {ratio.kind} "
        f"of {ratio.n} passes)",
    ]


@click.command(help=__doc__)
@click.argument("model")
@click.option("--engine-python", help="The Python of an environment with vLLM.")
@click.option("--passes", default=4, show_default=True)
@click.option("--unbound", is_flag=True, help="Let the engine use every core.")
@click.option("--ours", "only_ours", is_flag=True, help="Our way once, as JSON.")
def command(
    model: str, engine_python: str | None, passes: int, unbound: bool, only_ours: bool
) -> None:
    if only_ours:
        click.echo(json.dumps(ours(model)))
        return
    if engine_python is None:
        raise click.UsageError("--engine-python: name the Python of an environment with vLLM")
    checkpoint = open_checkpoint(str(Path(model).resolve()))
    pairs: list[tuple[float, float]] = []
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, passes + 1):
            try:
                one, other = _pass(number, checkpoint, engine_python, Path(folder), unbound)
            except PassError as error:
                faults.append(f"pass {number}: {error}")
                click.echo(faults[-1], err=True)
                continue
            different = differences(one["digests"], other["digests"])
            faults += different
            pairs.append((one["seconds"], other["seconds"]))
            click.echo(
                f"pass {number}: engine {one['seconds']:.2f} s (it says {one['said']:.2f}; "
                f"{one['threads']} thread(s), cores {one['cores']}), ours {other['seconds']:.2f} s;"
                f" {len(other['digests'])} parameters, {len(different)} unequal"
            )
    for line in [*faults[:5], *lines(pairs)]:
        click.echo(line)
    sys.exit(1 if faults or not pairs else 0)


def _pass(
    number: int, checkpoint: Checkpoint, python: str, work: Path, unbound: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both once, the first of them the second one in the next pass."""
    size = checkpoint.file_bytes

    def engine() -> dict[str, Any]:
        return engines(python, checkpoint, work, unbound=unbound)

    def own() -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "bench.against_engine", checkpoint.root, "--ours"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise PassError(f"ours: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    if number % 2:
        one, other = engine(), own()
    else:
        other, one = own(), engine()
    checked(one, "engine", size)
    checked(other, "ours", size)
    return one, other


if __name__ == "__main__":
    command()
