"""Made-up models for slice plans: manifests without files, numbers for bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from loaders.checkpoint.dtypes import itemsize
from loaders.checkpoint.manifest import Checkpoint, TensorSpec, WeightFile
from loaders.slicing.plan import RankPlan

Sizes = Mapping[str, Sequence[int] | tuple[str, Sequence[int]]]


def manifest(
    tensors: Sizes, config: Mapping[str, Any] | None, dtype: str = "bfloat16"
) -> Checkpoint:
    """One file that holds `tensors` ({name: shape} or {name: (dtype, shape)}) one after another."""
    specs: list[TensorSpec] = []
    offset = 64
    for name, given in tensors.items():
        own, shape = given if given and isinstance(given[0], str) else (dtype, given)
        nbytes = math.prod(shape) * itemsize(own)
        specs.append(
            TensorSpec(
                name=name, dtype=own, shape=tuple(shape), file="f", offset=offset, nbytes=nbytes
            )
        )
        offset += nbytes
    file = WeightFile(name="f", path="/f", size=offset)
    return Checkpoint(
        root="/", origin="made-up", format="safetensors", files=(file,), tensors=tuple(specs),
        config=config,
    )  # fmt: skip


def numbered(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Every element of every tensor with a number of its own."""
    found: dict[str, np.ndarray] = {}
    start = 0
    for spec in checkpoint.tensors:
        size = math.prod(spec.shape)
        found[spec.name] = np.arange(start, start + size).reshape(spec.shape)
        start += size
    return found


def carried_out(plan: RankPlan, sources: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The rank's parameters, as plan.py's docstring says to fill them; -1 where nothing is put. An
    element that is filled twice fails."""
    found: dict[str, np.ndarray] = {}
    for parameter in plan.parameters:
        target = np.full(parameter.shape, -1)
        for piece in parameter.pieces:
            source = sources[piece.tensor]
            block = source
            if source.ndim:
                assert 0 <= piece.start < piece.stop <= source.shape[piece.dim]
                cut = [slice(None)] * source.ndim
                cut[piece.dim] = slice(piece.start, piece.stop)
                block = source[tuple(cut)]
            assert block.shape == piece.shape
            window = piece.window(parameter)
            assert (target[window] == -1).all(), f"{parameter.name} is filled twice"
            target[window] = block.reshape(target[window].shape)
        assert (target == -1).sum() == parameter.padding
        assert parameter.name not in found
        found[parameter.name] = target
    return found


LAYER = "model.layers.{}."


def decoder(
    *, layers: int = 1, hidden: int = 12, heads: int = 4, kv: int = 2, dim: int = 3, inter: int = 8,
    vocab: int = 101, bias: bool = False, tied: bool = False, experts: int = 0, moe: int = 6,
    shared: bool = False, arch: str | None = None,
) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:  # fmt: skip
    """Tensors and config.json of a Llama-like model, or of a Qwen3-MoE-like one."""
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for number in range(layers):
        at = LAYER.format(number)
        tensors |= {f"{at}input_layernorm.weight": (hidden,)}
        for part, rows in (("q", heads * dim), ("k", kv * dim), ("v", kv * dim)):
            tensors[f"{at}self_attn.{part}_proj.weight"] = (rows, hidden)
            if bias:
                tensors[f"{at}self_attn.{part}_proj.bias"] = (rows,)
        tensors[f"{at}self_attn.o_proj.weight"] = (hidden, heads * dim)
        if bias:
            tensors[f"{at}self_attn.o_proj.bias"] = (hidden,)
        if experts:
            tensors[f"{at}mlp.gate.weight"] = (experts, hidden)
            for expert in range(experts):
                tensors |= mlp(f"{at}mlp.experts.{expert}.", hidden, moe)
        else:
            tensors |= mlp(f"{at}mlp.", hidden, inter)
        if shared:
            tensors |= mlp(f"{at}mlp.shared_expert.", hidden, inter)
    tensors["model.norm.weight"] = (hidden,)
    if not tied:
        tensors["lm_head.weight"] = (vocab, hidden)
    config = {
        "architectures": [arch or ("Qwen3MoeForCausalLM" if experts else "LlamaForCausalLM")],
        "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "num_key_value_heads": kv, "head_dim": dim, "vocab_size": vocab,
        "tie_word_embeddings": tied, "torch_dtype": "bfloat16",
    }  # fmt: skip
    if experts:
        config |= {"num_experts": experts}
    return tensors, config


def mlp(at: str, hidden: int, inter: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{at}gate_proj.weight": (inter, hidden),
        f"{at}up_proj.weight": (inter, hidden),
        f"{at}down_proj.weight": (hidden, inter),
    }


def latent(
    *, layers: int = 2, dense: int = 1, hidden: int = 10, heads: int = 4, q_rank: int | None = 6,
    experts: int = 6, moe: int = 8, draft: int = 1, vocab: int = 64,
) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:  # fmt: skip
    """A small DeepSeek: MLA, dense first layers, shared experts, MTP layers behind the last."""
    nope, rope, value, rank = 4, 2, 3, 5
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for number in range(layers + draft):
        at = LAYER.format(number)
        tensors[f"{at}input_layernorm.weight"] = (hidden,)
        queries = heads * (nope + rope)
        if q_rank:
            tensors |= {
                f"{at}self_attn.q_a_proj.weight": (q_rank, hidden),
                f"{at}self_attn.q_a_layernorm.weight": (q_rank,),
                f"{at}self_attn.q_b_proj.weight": (queries, q_rank),
            }
        else:
            tensors[f"{at}self_attn.q_proj.weight"] = (queries, hidden)
        tensors |= {
            f"{at}self_attn.kv_a_proj_with_mqa.weight": (rank + rope, hidden),
            f"{at}self_attn.kv_a_layernorm.weight": (rank,),
            f"{at}self_attn.kv_b_proj.weight": (heads * (nope + value), rank),
            f"{at}self_attn.o_proj.weight": (hidden, heads * value),
        }
        if number < dense:
            tensors |= mlp(f"{at}mlp.", hidden, 16)
        else:
            tensors[f"{at}mlp.gate.weight"] = (experts, hidden)
            tensors[f"{at}mlp.gate.e_score_correction_bias"] = (experts,)
            tensors |= mlp(f"{at}mlp.shared_experts.", hidden, moe)
            for expert in range(experts):
                tensors |= mlp(f"{at}mlp.experts.{expert}.", hidden, moe)
        if number >= layers:
            tensors[f"{at}eh_proj.weight"] = (hidden, 2 * hidden)
    tensors |= {"model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}
    config = {
        "architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": layers,
        "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": heads,
        "vocab_size": vocab, "n_routed_experts": experts, "n_group": 2, "q_lora_rank": q_rank,
        "kv_lora_rank": rank, "qk_nope_head_dim": nope, "qk_rope_head_dim": rope,
        "v_head_dim": value, "num_nextn_predict_layers": draft, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    return tensors, config


def names(plan: RankPlan) -> set[str]:
    return {parameter.name for parameter in plan.parameters}


def pieces_of(plans: Iterable[RankPlan], tensor: str) -> list[tuple[int, int, int]]:
    """(dim, start, stop) of a tensor's pieces, rank after rank."""
    return [
        (piece.dim, piece.start, piece.stop)
        for plan in plans
        for parameter in plan.parameters
        for piece in parameter.pieces
        if piece.tensor == tensor
    ]
