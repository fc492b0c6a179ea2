"""Small real checkpoints for assembling, with what each parameter must be, made by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.read import open_checkpoint
from loaders.device.interface import raw_bytes
from loaders.slicing.build import plan_rank
from loaders.slicing.model import model_of
from loaders.slicing.plan import Degrees, Parameter

HIDDEN, HEADS, KV, SIZE, MIDDLE, VOCAB, LAYERS = 64, 8, 4, 8, 96, 100, 3
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "head_dim": SIZE,
    "intermediate_size": MIDDLE,
    "vocab_size": VOCAB,
    "tie_word_embeddings": False,
}
SHAPES = {
    "input_layernorm": (HIDDEN,),
    "post_attention_layernorm": (HIDDEN,),
    "self_attn.q_proj": (HEADS * SIZE, HIDDEN),
    "self_attn.k_proj": (KV * SIZE, HIDDEN),
    "self_attn.v_proj": (KV * SIZE, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * SIZE),
    "mlp.gate_proj": (MIDDLE, HIDDEN),
    "mlp.up_proj": (MIDDLE, HIDDEN),
    "mlp.down_proj": (HIDDEN, MIDDLE),
}


def shapes() -> dict[str, tuple[int, ...]]:
    """Every tensor of the model, {name: shape}."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for layer in range(LAYERS):
        for name, shape in SHAPES.items():
            found[f"model.layers.{layer}.{name}.weight"] = shape
    return {**found, "model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}


def written(folder: Path, config: Mapping[str, object] = CONFIG) -> Checkpoint:
    """The model in two files, bfloat16 noise."""
    draw = torch.Generator().manual_seed(7)
    made = {
        name: torch.randint(-(1 << 15), 1 << 15, shape, generator=draw, dtype=torch.int16).view(
            torch.bfloat16
        )
        for name, shape in shapes().items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    names = list(made)
    for number, part in enumerate((names[::2], names[1::2])):  # neighbours in different files
        save_file(
            {name: made[name] for name in part},
            folder / f"model-0000{number + 1}-of-00002.safetensors",
        )
    (folder / "config.json").write_text(json.dumps(config))
    return open_checkpoint(str(folder))


def planned(checkpoint: Checkpoint, tp: int, rank: int = 0) -> list[Parameter]:
    return list(plan_rank(model_of(checkpoint), Degrees(tp=tp), rank).parameters)


def expected(checkpoint: Checkpoint, tp: int, rank: int) -> dict[str, bytes]:
    """The rank's parameters by slices and cat alone, from the files, without any plan."""
    from safetensors.torch import load_file

    have = {
        name: tensor for file in checkpoint.files for name, tensor in load_file(file.path).items()
    }

    def rows(name: str) -> torch.Tensor:
        return have[name].chunk(tp, 0)[rank]

    def vocabulary(name: str) -> torch.Tensor:
        padded = -(-VOCAB // 64) * 64
        whole = torch.zeros((padded, HIDDEN), dtype=torch.bfloat16)
        whole[:VOCAB] = have[name]
        return whole.chunk(tp, 0)[rank]

    found = {"model.embed_tokens.weight": vocabulary("model.embed_tokens.weight")}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{at}{norm}.weight"] = have[f"{at}{norm}.weight"]
        attention = [rows(f"{at}self_attn.{part}_proj.weight") for part in "qkv"]
        found[f"{at}self_attn.qkv_proj.weight"] = torch.cat(attention)
        gated = [rows(f"{at}mlp.{part}_proj.weight") for part in ("gate", "up")]
        found[f"{at}mlp.gate_up_proj.weight"] = torch.cat(gated)
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            found[f"{at}{name}.weight"] = have[f"{at}{name}.weight"].chunk(tp, 1)[rank]
    found["model.norm.weight"] = have["model.norm.weight"]
    found["lm_head.weight"] = vocabulary("lm_head.weight")
    return {name: bytes(raw_bytes(tensor.contiguous()).numpy()) for name, tensor in found.items()}


def bytes_of(parameters: list[Parameter], targets: list[torch.Tensor]) -> dict[str, bytes]:
    return {
        one.name: bytes(raw_bytes(target).cpu().numpy())
        for one, target in zip(parameters, targets, strict=True)
    }
