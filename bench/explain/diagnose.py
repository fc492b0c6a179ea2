"""What stands out in a cold start, each with its lines and the next step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from bench.explain.build import status_of, version_of
from bench.explain.failures import Failure
from bench.explain.findings import Finding
from bench.explain.held import uneven, weights_size
from bench.explain.options import refused
from bench.explain.record import ColdStart
from bench.explain.state import State
from bench.explain.timeline import CAPTURE, WEIGHTS, Timeline

_DOMINANT = 0.5
_MUCH_CAPTURE = 0.25


def diagnose(state: State, record: ColdStart, times: Timeline) -> list[Finding]:
    """Findings in the order in which they matter."""
    checks: tuple[Callable[[State, ColdStart, Timeline], Iterator[Finding]], ...] = (
        _failed, _options, _weights_dominant, _capture, _bar_ended_early, weights_size, uneven,
        _file_system, _hidden, _afterwards,
    )  # fmt: skip
    return [finding for check in checks for finding in check(state, record, times)]


_NEXT = {
    "profiling_failed": "Profiling failed, not the pool: other processes took or freed memory on "
    "the card meanwhile, or the profiling run needs more than there is. See that nothing else uses "
    "the card, then lower --max-num-batched-tokens (or --max-num-seqs); a run with "
    "--num-gpu-blocks-override tells the two apart (explain --override).",
    "pool_too_small": "Weights and profiling went well; what is left holds too few KV blocks. "
    "Lower --max-model-len, raise --gpu-memory-utilization, raise the tensor parallel degree or "
    "load quantised weights.",
    "bad_checkpoint": "The files are at fault, not the engine: `coldload check MODEL` says which "
    "file and tensor.",
    "bad_option": "This version refuses the option; correct the command line, nothing was loaded.",
    "other": "Read the root cause's line and the traceback above it; what the processes above "
    "print afterwards only repeats that something failed.",
}
_MEMORY_AT_START = re.compile(r"Free memory on device .*less than desired")


def _failed(state: State, record: ColdStart, times: Timeline) -> Iterator[Finding]:
    _, root = status_of(state)
    if isinstance(root, Failure):
        step = _NEXT[root.kind]
        if _MEMORY_AT_START.search(root.whole):
            step = (
                "Before anything was loaded the card had less free than the utilisation asks "
                "for: free it of other processes, or lower --gpu-memory-utilization."
            )
        yield Finding(
            code=root.kind,
            text=f"failed in the stage {root.stage}: {root.whole}",
            evidence=(root.line,),
            next_step=step,
        )
    elif record.status == "incomplete":
        last = state.latest.line if state.latest else 0
        done = record.phases
        where = f", shards {done.shards_done} of {done.shards_total}" if done.shards_total else ""
        yield Finding(
            code="incomplete",
            text=f"the log ends in the stage {state.stage}{where}, neither ready nor failed",
            evidence=(last,) if last else (),
            next_step="Take the log again after the engine is ready, or see whether it hangs "
            "(py-spy dump, kernel log for killed processes).",
        )


def _options(state: State, record: ColdStart, times: Timeline) -> Iterator[Finding]:
    yield from refused(state, version_of(record.vllm_version))


def _weights_dominant(state: State, record: ColdStart, times: Timeline) -> Iterator[Finding]:
    for stage in times.stages:
        if stage.name == WEIGHTS and (stage.share or 0) >= _DOMINANT:
            slowest = f", slowest {stage.slowest}" if stage.slowest else ""
            yield Finding(
                code="weights_dominant",
                text=f"the weights take {stage.seconds:.1f} s, {stage.share or 0:.0%} of the wall "
                f"time{slowest}",
                evidence=stage.lines,
                next_step="Measure the load paths on this host (pytest --benchmark-only) and give "
                "the run to explain with --run.",
            )


def _capture(state: State, record: ColdStart, times: Timeline) -> Iterator[Finding]:
    for stage in times.stages:
        if stage.name == CAPTURE and (stage.share or 0) >= _MUCH_CAPTURE:
            taken = [
                abs(event.number(1)) / (1024 if event.groups[2] == "MiB" else 1)
                for event in state.all("capture_end")
                if event.groups[1]
            ]
            memory = f" and up to {max(taken):.2f} GiB a worker" if taken else ""
            yield Finding(
                code="capture_dominant",
                text=f"graph capture takes {stage.seconds:.0f} s, {stage.share or 0:.0%} of the "
                f"wall time{memory}",
                evidence=stage.lines,
                next_step="Fewer capture sizes (--max-num-seqs, --cudagraph-capture-sizes) cost "
                "decode speed at batch sizes between them; --enforce-eager drops capture and that "
                "speed altogether.",
            )


def _bar_ended_early(state: State, record: ColdStart, times: Timeline) -> Iterator[Finding]:
    phases = record.phases
    weights = phases.weights_seconds or phases.load_model_seconds
    bar = phases.shard_read_seconds
    if weights is None or bar is None or weights < 2 * max(bar, 1) or weights - bar < 5:
        return
    yield Finding(
        code="bar_is_not_bytes",
        text=f"the shard bar ended after {bar} s, the weights were in place after {weights:.1f} s: "
        "the bar counts opened files (views of a mapping), not bytes",
        evidence=(
            *record.evidence["shard_read_seconds"],
            *record.evidence.get("weights_seconds", ()),
        ),
        next_step='The missing time is page faults and copies to the device: judge by "Loading '
        "weights took\", never by the bar; threads over the shards open files, they don't read.",
    )


def _file_system(state: State, record: ColdStart, times: Timeline) -> Iterator[Finding]:
    known = state.one("file_system")
    skipped = state.one("no_prefetch")
    if known is None and skipped is None:
        return
    lines = tuple(event.moment.line for event in (known, skipped) if event)
    if known:
        kind, size, free = known.groups[0] or "", known.number(1), known.number(2)
        fits = size <= 0.9 * free
        told = f"{kind}, {size:g} GiB of checkpoint, {free:g} GiB of memory available"
    else:
        kind, fits, told = "", True, (skipped.groups[0] or "")[:160] if skipped else ""
    network = kind.lower() in {"nfs", "nfs4", "lustre"}
    if network and not fits:
        step = (
            "It doesn't fit in 90 % of the memory, so the engine reads by page faults over the "
            "network: more memory, local copies, or a loader that reads ahead "
            "(runai_streamer)."
        )
    elif network:
        step = "A network file system that the engine knows: it reads ahead by itself."
    elif fits:
        step = (
            "The engine reads ahead only on NFS and Lustre; here "
            "--safetensors-load-strategy=prefetch forces it. Measure it first: on a fast local "
            "disk it can be slower."
        )
    else:
        step = "It doesn't fit in memory: reading ahead would push out what was read before."
    yield Finding(code="file_system", text=told, evidence=lines, next_step=step)


def _hidden(state: State, record: ColdStart, times: Timeline) -> Iterator[Finding]:
    version = version_of(record.vllm_version)
    ranks = (record.tensor_parallel_size or 1) * (record.pipeline_parallel_size or 1)
    seen = len(record.phases.weights_gb_by_worker)
    if version >= (0, 13) and ranks > 1 and 0 < seen < ranks and record.device != "npu":
        yield Finding(
            code="ranks_hidden",
            text=f"{seen} of {ranks} ranks print their times: since 0.13 only the first of each "
            "node does, and the slowest may be another",
            evidence=record.evidence.get("weights_gb_by_worker", ()),
            next_step="Where the engine waits longer than this rank took, a slower one is hidden.",
        )
    if state.starts > 1:
        yield Finding(
            code="restarted",
            text=f"the log holds {state.starts} starts; this record is the last one's",
            evidence=(state.first.line,) if state.first else (),
            next_step="For the earlier ones cut the log before that line.",
        )


def _afterwards(state: State, record: ColdStart, times: Timeline) -> Iterator[Finding]:
    if state.later is None:
        return
    asked = state.shutdown_line is not None and state.shutdown_line <= state.later.line
    yield Finding(
        code="failed_later",
        text=f"after it was ready: {state.later.whole}",
        evidence=(state.later.line,),
        next_step=f"It was being shut down since line {state.shutdown_line}: harmless."
        if asked
        else "The start itself went well; this is another matter.",
    )
