"""The KV pool that an engine sizes after loading: blocks, tokens, concurrency. Pure formulas.

Source: vLLM 0.4.2 to 0.33.0 (v0: worker.py, cache_engine.py; v1: gpu_worker.py, kv_cache_utils.py,
kv_cache_interface.py). Sizes are bytes, lengths tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from loaders.checkpoint.dtypes import BY_NAME, itemsize
from loaders.slicing.config import ModelFacts, needed
from loaders.slicing.engines import Engine
from loaders.slicing.errors import ConfigError, PlanError

_FP8: Final = {"fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla"}
_WITHOUT_KV: Final = {"linear_attention", "mamba", "conv"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """`block_bytes` of one block through all layers of the worker. The rest is None where the
    device's memory isn't known; `pool_bytes` may be negative: the weights alone don't fit.
    `num_cpu_blocks` is None where the engine has no swap space (v1) and none was given.
    `concurrency` is how many requests of `length` tokens fit at once."""

    block_bytes: int
    pool_bytes: int | None
    num_gpu_blocks: int | None
    num_cpu_blocks: int | None
    tokens: int | None
    concurrency: float | None


def element_bytes(kv_dtype: str, model_dtype: str | None) -> int:
    """Bytes of one element of the cache. `kv_dtype` is "auto" (the model's dtype) or as
    --kv-cache-dtype has it. PlanError for an unknown one, or for auto without the model's."""
    if kv_dtype in _FP8:
        return 1
    name = model_dtype if kv_dtype == "auto" else {"half": "float16"}.get(kv_dtype, kv_dtype)
    if name is None:
        raise ConfigError(
            "config.json: neither dtype nor torch_dtype, so the KV cache's is unknown; pass "
            "--kv-dtype bfloat16"
        )
    if name not in BY_NAME:
        raise PlanError(f"--kv-dtype: expected auto, fp8, float16, bfloat16 or float32, got {name}")
    return itemsize(name)


def layer_block_bytes(facts: ModelFacts, tp: int, block_size: int, element: int) -> int:
    """One block of one layer on one worker: keys and values of its heads (at least one: where there
    are fewer than workers, they are replicated). MLA keeps one compressed vector a token, which
    isn't divided by tp. ConfigError where config.json lacks a size."""
    if facts.latent:
        return block_size * (needed(facts, "kv_rank") + needed(facts, "rope_dim")) * element
    heads = max(1, needed(facts, "kv_heads") // tp)
    head_size = facts.head_size
    if head_size is None:
        needed(facts, "heads")
        head_size = needed(facts, "hidden") // needed(facts, "heads")
    return 2 * block_size * heads * head_size * element


def kv_layers(facts: ModelFacts, layers: tuple[int, int]) -> int:
    """How many of a stage's layers keep keys and values: not the linear-attention ones."""
    first, end = layers
    kinds = facts.layer_types
    if kinds is None or len(kinds) < end:
        return end - first
    return sum(kind not in _WITHOUT_KV for kind in kinds[first:end])


def pool_bytes(engine: Engine, total: int, utilisation: float, peak: int) -> int:
    """What is left for the cache on a device of `total` bytes. `peak` is the weights and all else
    that stays or was needed while profiling. ValueError for a utilisation outside 0 to 1."""
    if not 0 < utilisation <= 1:
        raise ValueError(f"utilisation: expected more than 0, at most 1, got {utilisation}")
    share = total * utilisation
    return (math.ceil(share) if engine.rounds_up else math.floor(share)) - peak


def pool(
    engine: Engine,
    *,
    block_bytes: int,
    block_size: int,
    available: int | None,
    swap: int | None,
    length: int | None,
) -> Pool:
    """The pool of `available` bytes (None: unknown) in blocks of `block_size` tokens.

    v0: num_gpu_blocks = (total x utilisation - peak) // block_bytes, num_cpu_blocks = swap //
    block_bytes. v1 has the same quotient by page and layers. Tokens are blocks x block_size; from
    0.22 what is printed is concurrency x length (engines.Engine.tokens_by_length), less by the
    unused end of each request's last block.
    """
    cpu = None if swap is None else swap // block_bytes
    if available is None:
        return Pool(
            block_bytes=block_bytes,
            pool_bytes=None,
            num_gpu_blocks=None,
            num_cpu_blocks=cpu,
            tokens=None,
            concurrency=None,
        )
    blocks = max(0, available // block_bytes)
    concurrency = None if length is None else blocks / -(-length // block_size)
    tokens = blocks * block_size
    if engine.tokens_by_length and concurrency is not None and length is not None:
        tokens = int(concurrency * length)
    return Pool(
        block_bytes=block_bytes,
        pool_bytes=available,
        num_gpu_blocks=blocks,
        num_cpu_blocks=cpu,
        tokens=tokens,
        concurrency=concurrency,
    )
