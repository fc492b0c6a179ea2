"""What a remedy would save of one start: at most, by the log's own figures, and as expected, by the
rates that a run of this suite measured on the host."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from bench.explain.record import ColdStart
from bench.explain.timeline import CAPTURE, PROFILING, WEIGHTS, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Measured on the host, GB/s, cold reads of one process: the best way, and the way that the
    engine took, each with its name; None where the run has none."""

    best: float
    best_name: str
    current: float | None
    current_name: str | None
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """`at_most` seconds is an upper bound: the whole of what the remedy touches. None where the log
    has no figure for it. `expected` is from measured rates, None without them."""

    remedy: str
    touches: str
    at_most: float | None
    expected: float | None
    cost: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def savings(
    record: ColdStart, times: Timeline, nbytes: float | None, rates: Rates | None
) -> list[Saving]:
    """Remedies of the weights stage first, then the settings that move the others."""
    phases = record.phases
    seconds = {stage.name: stage.seconds for stage in times.stages if stage.within is None}
    load = phases.load_model_seconds or phases.weights_seconds or seconds.get(WEIGHTS)
    read = phases.weights_seconds if phases.weights_seconds is not None else load
    capture, profiling = seconds.get(CAPTURE), seconds.get(PROFILING)
    dummy = record.load_format == "dummy"
    if dummy:
        read = None
    found = [
        Saving(remedy="faster storage", touches="reading and copying", at_most=read,
               expected=_storage(read, nbytes, rates),
               cost="hardware; no gain where page faults and copies are the limit"),
        Saving(remedy="more threads, or another load path", touches="reading and copying",
               at_most=read, expected=_path(read, nbytes, rates),
               cost="CPU and memory during the start"),
        Saving(remedy="snapshot (sharded_state)", touches="the weights stage",
               at_most=None if dummy else load, expected=None,
               cost="one copy of the weights for each parallel layout; made again for each new "
               "model, engine version and quantisation"),
        Saving(remedy="offline w8a8", touches="half of the bytes", at_most=_half(record, read),
               expected=None, cost="calibration, an evaluation, and a device with int8 kernels"),
        Saving(remedy="--enforce-eager", touches="graph capture and compiling",
               at_most=_sum(capture, phases.compile_seconds), expected=None,
               cost="decode speed, for as long as the engine runs"),
        Saving(remedy="--load-format dummy", touches="the weights stage",
               at_most=None if dummy else load, expected=None,
               cost="random weights: for trying configurations only"),
    ]  # fmt: skip
    return [*found, *_settings(record, read, capture, profiling)]


def _settings(
    record: ColdStart, read: float | None, capture: float | None, profiling: float | None
) -> list[Saving]:
    ranks = record.tensor_parallel_size
    return [
        Saving(remedy="lower --max-num-batched-tokens", touches="profiling", at_most=profiling,
               expected=None, cost="prefill throughput"),
        Saving(remedy="lower --max-num-seqs", touches="graph capture (fewer sizes)",
               at_most=capture, expected=None, cost="requests at the same time"),
        Saving(remedy="lower --max-seq-len-to-capture", touches="graph capture (v0 only)",
               at_most=capture if record.engine == "v0" else None, expected=None,
               cost="longer sequences decode without graphs"),
        Saving(remedy="another --gpu-memory-utilization", touches="the KV pool's size",
               at_most=0.0, expected=None,
               cost="moves memory, not time: more of it means more tokens at once"),
        Saving(remedy="a higher tensor parallel degree", touches="weights of each rank",
               at_most=read / 2 if read and ranks else None, expected=None,
               cost="twice the cards; ranks that read whole files read as much as before"),
    ]  # fmt: skip


def _storage(read: float | None, nbytes: float | None, rates: Rates | None) -> float | None:
    """The reading itself, at the rate that the engine's own way was measured with: storage that
    costs no time at all saves that much. What the stage takes beyond it isn't reading."""
    if read is None or not nbytes or rates is None or not rates.current:
        return None
    return min(read, round(nbytes / 1e9 / rates.current, 3))


def _path(read: float | None, nbytes: float | None, rates: Rates | None) -> float | None:
    """What the best way takes less than the engine's own for the same bytes, by the measured rates;
    without a rate of its own way, all that the stage takes longer than the best one."""
    if read is None or not nbytes or rates is None or rates.best <= 0:
        return None
    best = nbytes / 1e9 / rates.best
    now = nbytes / 1e9 / rates.current if rates.current else read
    return min(read, round(max(0.0, now - best), 3))


def _half(record: ColdStart, read: float | None) -> float | None:
    if read is None or record.quantization or record.dtype not in ("bfloat16", "float16", "half"):
        return None
    return round(read / 2, 3)


def _sum(*values: float | None) -> float | None:
    present = [value for value in values if value is not None]
    return round(sum(present), 3) if present else None
