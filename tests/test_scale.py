from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.sizes import parse_size
from bench.synth.scale import ScaleError, scale
from bench.synth.shapes import (
    DTYPES,
    FP8,
    Shape,
    config_of,
    expand,
    load_shape,
    shape_names,
    tensor_bytes,
    with_dtype,
)

MIB = 2**20


def assert_valid(scaled: Shape, published: Shape) -> None:
    """What an engine relies on, and that config.json says what the tensors say."""
    dims, full = scaled.dims, published.dims
    assert dims.keys() == full.keys()
    for name in dims:
        assert 0 <= dims[name] <= full[name]
    for name in ("head_dim", "nope_dim", "rope_dim", "v_dim", "shared_experts"):
        assert dims.get(name) == full.get(name)
    assert dims["layers"] >= 1
    assert dims["heads"] % dims["kv_heads"] == 0
    assert dims["heads"] // dims["kv_heads"] == full["heads"] // full["kv_heads"]
    for name in ("hidden", "intermediate", "moe_intermediate", "q_rank", "kv_rank", "vocab"):
        assert dims.get(name, 64) % 64 == 0
        assert dims.get(name, 64) >= 64
    if "dense_layers" in dims:
        assert 1 <= dims["dense_layers"] < dims["layers"]
    if "experts" in dims:
        assert 1 <= dims["active_experts"] < dims["experts"]
    if "expert_groups" in dims:
        assert dims["experts"] % dims["expert_groups"] == 0
        in_group = dims["experts"] // dims["expert_groups"]
        assert in_group >= 2
        assert dims["active_groups"] <= dims["expert_groups"]
        assert dims["active_experts"] <= dims["active_groups"] * in_group

    config = config_of(scaled)
    assert config["bos_token_id"] < config["vocab_size"]
    assert config["eos_token_id"] < config["vocab_size"]
    tensors = {tensor.name: tensor for tensor in expand(scaled)}
    assert tensors["model.embed_tokens.weight"].shape == (
        config["vocab_size"],
        config["hidden_size"],
    )
    layers = {int(name.split(".")[2]) for name in tensors if name.startswith("model.layers.")}
    expected = config["num_hidden_layers"] + config.get("num_nextn_predict_layers", 0)
    assert layers == set(range(expected))
    if "n_routed_experts" in config:
        gate = tensors[f"model.layers.{config['first_k_dense_replace']}.mlp.gate.weight"]
        assert gate.shape == (config["n_routed_experts"], config["hidden_size"])
    else:
        q = tensors["model.layers.0.self_attn.q_proj.weight"]
        k = tensors["model.layers.0.self_attn.k_proj.weight"]
        assert q.shape[0] == config["num_attention_heads"] * config["head_dim"]
        assert k.shape[0] == config["num_key_value_heads"] * config["head_dim"]


@settings(max_examples=300, deadline=None)
@given(
    name=st.sampled_from(shape_names()),
    dtype=st.sampled_from((None, *DTYPES)),
    where=st.floats(min_value=0, max_value=1),
)
def test_any_size_from_1_mib_to_the_published_one(
    name: str, dtype: str | None, where: float
) -> None:
    """Sizes are drawn on a logarithmic scale, so that small ones get their share."""
    published = with_dtype(load_shape(name), dtype)
    full = tensor_bytes(published)
    size = min(full, round(MIB * math.exp(where * math.log(full / MIB))))
    scaled = scale(published, size)
    assert 0.95 * size <= tensor_bytes(scaled) <= size
    assert sum(tensor.nbytes for tensor in expand(scaled)) == tensor_bytes(scaled)
    assert_valid(scaled, published)


@pytest.mark.parametrize("name", shape_names())
@pytest.mark.parametrize("size", ["1MiB", "16MiB", "256MiB", "1GiB"])
def test_the_sizes_that_runs_use(name: str, size: str) -> None:
    scaled = scale(load_shape(name), parse_size(size))
    assert 0.97 * parse_size(size) <= tensor_bytes(scaled) <= parse_size(size)
    assert_valid(scaled, load_shape(name))


@pytest.mark.parametrize("name", shape_names())
def test_the_whole_shape(name: str) -> None:
    shape = load_shape(name)
    full = tensor_bytes(shape)
    assert scale(shape, None) is shape
    assert scale(shape, full) is shape
    assert scale(shape, full + full // 200) is shape


@pytest.mark.parametrize("name", shape_names())
def test_more_than_the_published_size_is_refused(name: str) -> None:
    shape = load_shape(name)
    with pytest.raises(ScaleError) as caught:
        scale(shape, 2 * tensor_bytes(shape))
    assert name in str(caught.value)
    assert str(tensor_bytes(shape)) in str(caught.value)


@pytest.mark.parametrize("name", shape_names())
def test_less_than_the_smallest_valid_size_is_refused_with_that_size(name: str) -> None:
    shape = load_shape(name)
    with pytest.raises(ScaleError, match="can't be smaller than") as caught:
        scale(shape, 10_000)
    least = int(str(caught.value).split(" bytes)")[0].rsplit("(", 1)[1])
    smallest = scale(shape, least)
    assert tensor_bytes(smallest) <= least
    assert_valid(smallest, shape)


def test_layers_go_first_then_experts_then_width() -> None:
    llama = load_shape("llama-3.1-8b")
    fewer = scale(llama, parse_size("10GiB")).dims
    assert fewer["layers"] < 32
    assert (fewer["hidden"], fewer["heads"]) == (4096, 32)
    narrow = scale(llama, parse_size("1GiB")).dims
    assert narrow["layers"] == 4
    assert narrow["hidden"] < 4096

    moe = load_shape("qwen3-30b-a3b")
    assert scale(moe, parse_size("20GiB")).dims["experts"] == 128
    half = scale(moe, parse_size("3GiB")).dims
    assert half["layers"] == 4
    assert half["experts"] < 128
    assert half["hidden"] >= 1920


def test_experts_divide_among_ranks_at_usual_sizes() -> None:
    for name in ("qwen3-30b-a3b", "deepseek-v3"):
        for size in ("64MiB", "1GiB", "3GiB", "40GiB"):
            assert scale(load_shape(name), parse_size(size)).dims["experts"] % 8 == 0


@pytest.mark.parametrize("size", ["1GiB", "4GiB", "100GiB"])
def test_fp8_feed_forward_widths_divide_among_four_ranks_in_whole_blocks(size: str) -> None:
    """vLLM refuses a shard that is not a multiple of the weight's quantisation block."""
    for name, dtype in (("deepseek-v3", None), ("llama-3.1-70b", FP8)):
        shape = with_dtype(load_shape(name), dtype)
        if tensor_bytes(shape) < parse_size(size):
            continue
        dims = scale(shape, parse_size(size)).dims
        widths = [dims[key] for key in ("intermediate", "moe_intermediate") if key in dims]
        assert all(width % 512 == 0 for width in widths)


@pytest.mark.parametrize("name", shape_names())
@pytest.mark.parametrize("size", [4 * MIB, 16 * MIB, 64 * MIB])
def test_eight_ranks_can_share_the_heads_of_small_ones(name: str, size: int) -> None:
    dims = scale(load_shape(name), size).dims
    assert dims["heads"] % 8 == 0
    assert dims["kv_heads"] % 8 == 0 or 8 % dims["kv_heads"] == 0
