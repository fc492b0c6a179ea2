"""The cold-start record. Field names are fixed; absent is null, never 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from bench.explain.failures import Kind

Status = Literal["ready", "failed", "incomplete"]
Number = int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Figures as printed, of the main model. "GB" and "GiB" are both 2^30 bytes in these logs, so
    nothing is converted. Of workers and engines: the largest weights, the slowest time, the
    smallest pool. Durations in seconds."""

    weights_gb: float | None = None
    weights_unit: str | None = None
    weights_gb_by_worker: Mapping[str, float] = field(default_factory=dict)
    weights_seconds: float | None = None
    load_model_seconds: float | None = None
    shards_total: int | None = None
    shards_done: int | None = None
    shard_read_seconds: int | None = None
    download_seconds: float | None = None
    profiling_seconds: float | None = None
    num_gpu_blocks: int | None = None
    num_cpu_blocks: int | None = None
    kv_cache_tokens: int | None = None
    compile_seconds: float | None = None
    graph_capture_secs: Number | None = None
    init_engine_secs: float | None = None
    startup_wall_secs: Number | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStart:
    """One start of an engine, as its log tells it. `failure` is the root cause's line without its
    prefix. `evidence` maps each field that the log gave to the numbers of its lines (from 1)."""

    model: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    gpu_memory_utilization: float | None = None
    load_format: str | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    block_size: int | None = None
    swap_space: float | None = None
    enforce_eager: bool | None = None
    max_seq_len_to_capture: int | None = None
    num_gpu_blocks_override: int | None = None
    seed: int | None = None
    engine: str | None = None
    vllm_version: str | None = None
    device: str | None = None
    status: Status = "incomplete"
    failure_kind: Kind | None = None
    failure: str | None = None
    tp_ranks: tuple[int, ...] = ()
    ep_ranks: tuple[int, ...] = ()
    pp_ranks: tuple[int, ...] = ()
    dp_engines: tuple[int, ...] = ()
    phases: Phases = Phases()
    evidence: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As it is printed; tuples become lists."""
        found: dict[str, Any] = _lists(asdict(self))
        return found


def _lists(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _lists(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_lists(item) for item in value]
    return value
