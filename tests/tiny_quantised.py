"""Tiny models, quantised checkpoints and weights for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1}
LAYER = "model.layers.0"


def weight(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * 0.02).to(dtype)


def model(experts: int = 0, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    """One layer of a model, with routed experts if asked for."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (12, 8),
        "lm_head.weight": (12, 8),
        "model.norm.weight": (8,),
        f"{LAYER}.input_layernorm.weight": (8,),
        f"{LAYER}.self_attn.q_proj.weight": (8, 8),
        f"{LAYER}.self_attn.q_proj.bias": (8,),
        f"{LAYER}.self_attn.k_proj.weight": (4, 8),
        f"{LAYER}.self_attn.v_proj.weight": (4, 8),
        f"{LAYER}.self_attn.o_proj.weight": (8, 8),
    }
    if experts:
        shapes[f"{LAYER}.mlp.gate.weight"] = (experts, 8)
    prefixes = [f"experts.{number}." for number in range(experts)] or [""]
    for prefix in prefixes:
        for part, shape in (("gate", (6, 8)), ("up", (6, 8)), ("down", (8, 6))):
            shapes[f"{LAYER}.mlp.{prefix}{part}_proj.weight"] = shape
    return {
        name: weight(*shape, dtype=dtype, seed=number)
        for number, (name, shape) in enumerate(shapes.items())
    }


def write(
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    *,
    shards: int = 1,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """A checkpoint folder with config.json, an index where there are shards, and other files."""
    folder.mkdir(parents=True)
    names = sorted(tensors)
    places = {}
    for number in range(shards):
        name = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        name = name if shards > 1 else "model.safetensors"
        part = {key: tensors[key].contiguous() for key in names[number::shards]}
        save_file(part, folder / name, metadata={"format": "pt"})
        places |= dict.fromkeys(part, name)
    if shards > 1:
        index = {"metadata": {}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    return folder


def compressed_config(
    ignore: list[str],
    *,
    strategy: str = "channel",
    kind: str = "int",
    static: bool = False,
    **more: Any,
) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": kind, "strategy": strategy, "symmetric": True, **more}
    inputs = {"num_bits": 8, "type": kind, "strategy": "tensor" if static else "token"}
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": {**inputs, "dynamic": not static, "symmetric": True},
    }
    return {
        **CONFIG,
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": f"{kind}-quantized",
            "config_groups": {"group_0": group},
            "ignore": ignore,
        },
    }
