from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from bench.synth.dims import DimensionError, evaluate
from bench.synth.shapes import (
    FOLDER,
    FP8,
    ShapeError,
    ShapeTensor,
    config_of,
    elements,
    expand,
    load_shape,
    parameters,
    parse_shape,
    shape_names,
    tensor_bytes,
    with_dtype,
)

NAMES = (
    "deepseek-v3",
    "llama-0.85b",
    "llama-3.1-70b",
    "llama-3.1-8b",
    "mixtral-8x7b",
    "qwen3-0.6b",
    "qwen3-30b-a3b",
    "qwen3-32b",
)
# Model cards and config.json of the repositories; what the files store: safetensors summary of the
# Hub and metadata.total_size of each index. Repeated here, so that an edited TOML can't agree with
# itself only.
PARAMETERS = {
    "deepseek-v3": 671_026_419_200,
    "llama-0.85b": 852_559_872,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-0.6b": 596_049_920,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-32b": 32_762_123_264,
}
STORED_BYTES = {
    "deepseek-v3": 2 * 3_918_786_560 + 680_571_043_840 + 4 * 41_555_600,
    "llama-0.85b": 1_705_119_744,
    "llama-3.1-70b": 141_107_412_992,
    "llama-3.1-8b": 16_060_522_496,
    "mixtral-8x7b": 93_405_585_408,
    "qwen3-0.6b": 2 * 751_632_384,
    "qwen3-30b-a3b": 61_064_245_248,
    "qwen3-32b": 65_524_246_528,
}


def by_name(name: str) -> dict[str, ShapeTensor]:
    return {tensor.name: tensor for tensor in expand(load_shape(name))}


def test_the_built_in_shapes_are_these() -> None:
    assert shape_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_totals_are_the_published_ones(name: str) -> None:
    shape = load_shape(name)
    assert parameters(shape) == PARAMETERS[name] == shape.published.parameters
    assert tensor_bytes(shape) == STORED_BYTES[name]
    assert elements(shape) == dict(shape.published.elements)


@pytest.mark.parametrize("name", NAMES)
def test_expansion_agrees_with_the_totals(name: str) -> None:
    shape = load_shape(name)
    tensors = expand(shape)
    assert len(tensors) == shape.published.tensors
    assert len({tensor.name for tensor in tensors}) == len(tensors)
    assert sum(tensor.nbytes for tensor in tensors) == tensor_bytes(shape)
    assert not any("{" in tensor.name for tensor in tensors)
    assert expand(shape) == tensors


def test_deepseek_counts_as_the_hub_does() -> None:
    """The Hub's 684_531_386_000 (its "685B") has MTP layer and scales; the card's 671B has not."""
    shape = load_shape("deepseek-v3")
    assert sum(elements(shape).values()) == 684_531_386_000
    main = [
        tensor
        for tensor in expand(shape)
        if not tensor.name.startswith("model.layers.61.") and not tensor.name.endswith("_scale_inv")
    ]
    assert len(main) == 45_395


def test_deepseek_stores_what_in_which_dtype() -> None:
    tensors = by_name("deepseek-v3")
    fp8 = {
        "model.layers.0.mlp.down_proj": (7168, 18432),
        "model.layers.61.self_attn.q_b_proj": (24576, 1536),
        "model.layers.5.self_attn.kv_a_proj_with_mqa": (576, 7168),
        "model.layers.60.mlp.experts.255.up_proj": (2048, 7168),
        "model.layers.3.mlp.shared_experts.gate_proj": (2048, 7168),
    }
    for name, sizes in fp8.items():
        assert (tensors[name + ".weight"].dtype, tensors[name + ".weight"].shape) == (FP8, sizes)
    assert tensors["model.layers.5.self_attn.kv_a_proj_with_mqa.weight_scale_inv"].shape == (5, 56)
    assert tensors["model.layers.0.mlp.down_proj.weight_scale_inv"].dtype == "float32"
    assert tensors["model.layers.3.mlp.gate.e_score_correction_bias"].dtype == "float32"
    for name in (
        "lm_head.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.3.mlp.gate.weight",
        "model.layers.61.eh_proj.weight",
        "model.layers.61.enorm.weight",
        "model.layers.61.hnorm.weight",
        "model.layers.61.embed_tokens.weight",
        "model.layers.61.shared_head.head.weight",
        "model.layers.61.shared_head.norm.weight",
    ):
        assert tensors[name].dtype == "bfloat16"
    assert "model.layers.2.mlp.gate.weight" not in tensors
    assert "model.layers.3.mlp.down_proj.weight" not in tensors


def test_tied_weights_have_one_content() -> None:
    assert by_name("qwen3-0.6b")["lm_head.weight"].content == "model.embed_tokens.weight"
    assert by_name("qwen3-32b")["lm_head.weight"].content == "lm_head.weight"
    mtp = by_name("deepseek-v3")["model.layers.61.shared_head.head.weight"]
    assert mtp.content == "lm_head.weight"


def test_names_and_sizes_of_the_other_shapes() -> None:
    llama = by_name("llama-3.1-8b")
    assert llama["model.layers.31.self_attn.k_proj.weight"].shape == (1024, 4096)
    assert llama["lm_head.weight"].shape == (128256, 4096)
    assert by_name("qwen3-0.6b")["model.layers.0.self_attn.q_proj.weight"].shape == (2048, 1024)
    assert by_name("qwen3-32b")["model.layers.63.self_attn.q_norm.weight"].shape == (128,)
    mixtral = by_name("mixtral-8x7b")
    assert mixtral["model.layers.0.block_sparse_moe.experts.7.w2.weight"].shape == (4096, 14336)
    moe = by_name("qwen3-30b-a3b")
    assert moe["model.layers.47.mlp.experts.127.down_proj.weight"].shape == (2048, 768)


def test_a_layer_lies_together() -> None:
    layers = [
        int(tensor.name.split(".")[2])
        for tensor in expand(load_shape("deepseek-v3"))
        if tensor.name.startswith("model.layers.")
    ]
    assert layers == sorted(layers)


@pytest.mark.parametrize("name", NAMES)
def test_config_is_json_and_says_what_engines_read(name: str) -> None:
    config = json.loads(json.dumps(config_of(load_shape(name)), allow_nan=False))
    for field in ("architectures", "model_type", "hidden_size", "num_hidden_layers",
                  "num_attention_heads", "num_key_value_heads", "vocab_size", "torch_dtype",
                  "tie_word_embeddings", "intermediate_size", "bos_token_id"):  # fmt: skip
        assert config[field] is not None
    assert ("quantization_config" in config) == (name == "deepseek-v3")


def test_deepseek_config_states_mla_moe_and_fp8() -> None:
    config = config_of(load_shape("deepseek-v3"))
    expected = {
        "first_k_dense_replace": 3,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "n_routed_experts": 256,
        "num_nextn_predict_layers": 1,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_group": 8,
        "topk_group": 4,
    }
    assert expected.items() <= config.items()
    assert config["quantization_config"]["weight_block_size"] == [128, 128]


def test_another_dtype() -> None:
    llama = load_shape("llama-3.1-8b")
    assert with_dtype(llama, None) is llama
    assert tensor_bytes(with_dtype(llama, "float32")) == 2 * STORED_BYTES["llama-3.1-8b"]
    assert config_of(with_dtype(llama, "float16"))["torch_dtype"] == "float16"
    fp8 = {tensor.name: tensor for tensor in expand(with_dtype(llama, FP8))}
    assert fp8["model.layers.0.mlp.up_proj.weight"].dtype == FP8
    assert fp8["model.layers.0.mlp.up_proj.weight_scale_inv"].shape == (112, 32)
    assert fp8["model.norm.weight"].dtype == fp8["lm_head.weight"].dtype == "bfloat16"
    plain = with_dtype(load_shape("deepseek-v3"), "bfloat16")
    assert not any(tensor.name.endswith("_scale_inv") for tensor in expand(plain))
    assert "quantization_config" not in config_of(plain)
    with pytest.raises(ShapeError, match=r"'int3'.*bfloat16, float16"):
        with_dtype(llama, "int3")


@pytest.mark.parametrize(
    ("asked", "near"),
    [("llama-3.1-7b", "llama-3.1-8b"), ("Mixtral-8x7B", "mixtral-8x7b"), ("qwen3", "qwen3-32b")],
)
def test_an_unknown_shape_names_the_near_misses_and_all(asked: str, near: str) -> None:
    with pytest.raises(ShapeError) as caught:
        load_shape(asked)
    hint, listed = str(caught.value).split("There are: ")
    assert near in hint
    assert listed == ", ".join(NAMES)


@pytest.mark.parametrize("asked", ["", "../pyproject", "/etc/passwd", "llama-3.1-8b.toml"])
def test_a_shape_name_is_never_a_path(asked: str) -> None:
    with pytest.raises(ShapeError, match="no shape is named"):
        load_shape(asked)


def test_a_new_shape_is_a_file_of_data() -> None:
    text = (FOLDER / "qwen3-0.6b.toml").read_text(encoding="utf-8")
    assert len(expand(parse_shape("mine", text.replace("layers = 28", "layers = 2")))) == 25


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("layers = 32", "layer = 32"), DimensionError),
        (('dtype = "bfloat16"', 'dtipe = "bfloat16"'), KeyError),
        (("linear = true", "linaer = true"), TypeError),
        (("[dims]", "[dims"), tomllib.TOMLDecodeError),
    ],
)
def test_a_faulty_shape_file_is_named(
    change: tuple[str, str],
    error: type[Exception],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = (FOLDER / "llama-3.1-8b.toml").read_text(encoding="utf-8").replace(*change)
    with pytest.raises(error):
        parse_shape("broken", text)
    (tmp_path / "broken.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr("bench.synth.shapes.FOLDER", tmp_path)
    with pytest.raises(ShapeError, match=r"broken\.toml"):
        load_shape("broken")


def test_datasets_holds_data_only() -> None:
    """A Python package here would hide Hugging Face's `datasets` from a run in the checkout."""
    assert {path.suffix for path in FOLDER.rglob("*") if path.is_file()} == {".toml"}


@pytest.mark.parametrize(
    ("expression", "value"),
    [("7", 7), ("a", 3), ("a*b", 15), ("a*(b+2)", 21), ("2*b-a", 7), ("b//2", 2), ("-(-3)", None)],
)
def test_dimension_expressions(expression: str, value: int | None) -> None:
    if value is None:
        with pytest.raises(DimensionError):
            evaluate(expression, {"a": 3, "b": 5})
    else:
        assert evaluate(expression, {"a": 3, "b": 5}) == value


@pytest.mark.parametrize(
    "expression",
    ["", "a*", "c", "a**9", "a/2", "f(a)", "a.b", "1.5*a", "True", "'x'", "a//0", "a if a else 1",
     "__import__('os')", "[a]", "a;b", "lambda: 1"],
)  # fmt: skip
def test_dimension_expressions_are_arithmetic_only(expression: str) -> None:
    with pytest.raises(DimensionError):
        evaluate(expression, {"a": 3})
