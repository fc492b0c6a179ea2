"""The question from the field: 41.2679 GB a worker, 8 workers (C95). Per card or total?"""

from __future__ import annotations

from bench.plan.planning import GIB, Question, answer
from loaders.slicing.engines import engine_of
from loaders.slicing.plan import Degrees
from tests.tiny_plans import manifest

HIDDEN, LAYERS, DENSE, EXPERTS, VOCAB = 5120, 92, 3, 160, 151552
HEADS, KV, DIM, WIDE, NARROW = 96, 8, 128, 12288, 1536
CONFIG = {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "head_dim": DIM,
    "vocab_size": VOCAB,
    "intermediate_size": WIDE,
    "moe_intermediate_size": NARROW,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "first_k_dense_replace": DENSE,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "quantize": "w8a8_dynamic",
}
Tensors = dict[str, tuple[str, tuple[int, ...]]]


def linear(found: Tensors, name: str, rows: int, columns: int, *, bias: bool = False) -> None:
    """As vllm-ascend's W8A8_DYNAMIC stores it: int8, scale and offset for each row."""
    found[f"{name}.weight"] = ("int8", (rows, columns))
    found[f"{name}.weight_scale"] = found[f"{name}.weight_offset"] = ("bfloat16", (rows, 1))
    if bias:
        found[f"{name}.bias"] = ("bfloat16", (rows,))


def mlp(found: Tensors, name: str, width: int) -> None:
    linear(found, f"{name}.gate_proj", width, HIDDEN)
    linear(found, f"{name}.up_proj", width, HIDDEN)
    linear(found, f"{name}.down_proj", HIDDEN, width)


def glm() -> Tensors:
    found: Tensors = {"model.embed_tokens.weight": ("bfloat16", (VOCAB, HIDDEN))}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        linear(found, f"{at}.self_attn.q_proj", HEADS * DIM, HIDDEN, bias=True)
        for name in ("k_proj", "v_proj"):
            linear(found, f"{at}.self_attn.{name}", KV * DIM, HIDDEN, bias=True)
        linear(found, f"{at}.self_attn.o_proj", HIDDEN, HEADS * DIM)
        for name in ("q_norm", "k_norm"):
            found[f"{at}.self_attn.{name}.weight"] = ("bfloat16", (DIM,))
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{at}.{name}.weight"] = ("bfloat16", (HIDDEN,))
        if layer < DENSE:
            mlp(found, f"{at}.mlp", WIDE)
            continue
        found[f"{at}.mlp.gate.weight"] = ("bfloat16", (EXPERTS, HIDDEN))
        found[f"{at}.mlp.gate.e_score_correction_bias"] = ("float32", (EXPERTS,))
        mlp(found, f"{at}.mlp.shared_experts", NARROW)
        # Stacked, so that there are hundreds of tensors and not a hundred thousand.
        for name, rows, columns in (
            ("gate_up_proj", 2 * NARROW, HIDDEN),
            ("down_proj", HIDDEN, NARROW),
        ):
            found[f"{at}.mlp.experts.{name}"] = ("int8", (EXPERTS, rows, columns))
            found[f"{at}.mlp.experts.{name}_scale"] = ("bfloat16", (EXPERTS, rows, 1))
    found["model.norm.weight"] = ("bfloat16", (HIDDEN,))
    found["lm_head.weight"] = ("bfloat16", (VOCAB, HIDDEN))
    return found


def test_c95_it_is_per_card_of_tp_8_ep_8() -> None:
    question = Question(
        degrees=Degrees(tp=8, ep=8),
        engine=engine_of("vllm-0.33"),
        stated=True,
        weights=round(41.2679 * GIB),
    )
    found = answer(manifest(glm(), CONFIG), question)
    assert found["weights"]["meaning"] == "per worker"
    assert abs(found["weights"]["deviation"]) < 0.005
    assert found["weights"]["verdict"].startswith("Per card: 41.2679 GB")
    best = found["matches"][0]
    assert best["world"] == 8
    assert abs(best["deviation"]) < 0.005
    assert {(one["tp"], one["ep"]) for one in found["matches"][:2]} == {(8, 1), (8, 8)}
    first = found["ranks"][0]
    assert first["experts"] == 20
    an_expert = 3 * NARROW * HIDDEN + 2 * (2 * NARROW + HIDDEN)
    assert first["by_class"]["experts"] == 89 * 20 * an_expert
    # 92 layers x 2 x 16 tokens x 1 head of 128 x 2 bytes
    assert found["kv"]["block_bytes"] == 92 * 2 * 16 * 128 * 2
