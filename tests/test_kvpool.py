"""The KV pool's formulas, with figures worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.plan.kvpool import element_bytes, kv_layers, layer_block_bytes, pool, pool_bytes
from loaders.slicing.config import ModelFacts, facts_of
from loaders.slicing.engines import engine_of
from loaders.slicing.errors import ConfigError, PlanError

GIB = 1 << 30
LLAMA = facts_of(
    {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
     "num_key_value_heads": 8, "torch_dtype": "bfloat16"}
)  # fmt: skip
V3 = facts_of({"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_attention_heads": 128})


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_a_block_of_a_layer_has_keys_and_values_of_this_ranks_heads(tp, heads):
    assert layer_block_bytes(LLAMA, tp, 16, 2) == 2 * 16 * heads * 128 * 2


def test_latent_attention_keeps_one_vector_whatever_tp_is():
    assert {layer_block_bytes(V3, tp, 16, 2) for tp in (1, 8)} == {16 * 576 * 2}


def test_num_gpu_blocks_is_total_times_utilisation_less_peak_over_block_bytes():
    block = layer_block_bytes(LLAMA, 1, 16, 2) * 32
    total, peak = 80 * GIB, 20 * GIB + 12345
    for name in ("vllm-0.6.3", "vllm-0.9.2", "vllm-0.33"):
        engine = engine_of(name)
        available = pool_bytes(engine, total, 0.9, peak)
        got = pool(
            engine, block_bytes=block, block_size=16, available=available, swap=4 * GIB, length=None
        )
        assert got.num_gpu_blocks == int((total * 0.9 - peak) // block) == 26623
        assert got.num_cpu_blocks == 4 * GIB // block == 2048
        assert got.tokens == 26623 * 16
        assert got.concurrency is None


def test_from_0_28_the_share_is_rounded_up():
    assert pool_bytes(engine_of("vllm-0.27.1"), 101, 0.5, 0) == 50
    assert pool_bytes(engine_of("vllm-0.28"), 101, 0.5, 0) == 51


def test_tokens_of_newer_engines_are_concurrency_times_length():
    given_ = {"block_bytes": 1, "block_size": 16, "available": 1000, "swap": None}
    old = pool(engine_of("vllm-0.20"), **given_, length=100)
    new = pool(engine_of("vllm-0.22"), **given_, length=100)
    assert old.tokens == 16000
    assert old.concurrency == new.concurrency == 1000 / 7
    assert new.tokens == int(1000 / 7 * 100)


@given(st.integers(1, 1 << 40), st.integers(-(1 << 30), 1 << 40), st.integers(1, 1 << 20))
def test_blocks_fill_the_pool_but_for_less_than_one(block_bytes, available, block_size):
    got = pool(
        engine_of("vllm-0.33"), block_bytes=block_bytes, block_size=block_size,
        available=available, swap=None, length=block_size,
    )  # fmt: skip
    left = max(0, available) - got.num_gpu_blocks * block_bytes
    assert 0 <= left < block_bytes
    assert got.tokens == got.num_gpu_blocks * block_size
    assert math.isclose(got.concurrency, got.num_gpu_blocks)


def test_layers_of_linear_attention_keep_no_keys():
    kinds = ["linear_attention", "linear_attention", "full_attention", "sliding_attention"]
    facts = ModelFacts(layer_types=tuple(kinds))
    assert [kv_layers(facts, bounds) for bounds in ((0, 4), (0, 2), (2, 4), (0, 9))] == [2, 0, 2, 9]


def test_what_is_not_known_is_said():
    assert [element_bytes(name, "bfloat16") for name in ("auto", "fp8", "float32")] == [2, 1, 4]
    with pytest.raises(PlanError, match="got nonsense"):
        element_bytes("nonsense", None)
    with pytest.raises(ConfigError, match="--kv-dtype"):
        element_bytes("auto", None)
    with pytest.raises(ConfigError, match="num_key_value_heads"):
        layer_block_bytes(ModelFacts(), 1, 16, 2)
    with pytest.raises(ValueError, match="utilisation"):
        pool_bytes(engine_of("vllm-0.33"), 1, 1.1, 0)
