"""The files that say how a checkpoint is quantised, as the software that opens it reads them."""

from __future__ import annotations

from typing import Any

from bench.quantize.plan import Plan
from loaders.quantise.schemes import BLOCK


def index(plan: Plan) -> dict[str, Any]:
    """model.safetensors.index.json, or msModelSlim's of the same content."""
    places = {
        stored.name: shard.name
        for shard in plan.shards
        for step in shard.steps
        for stored in step.stored
    }
    return {
        "metadata": {"total_size": plan.nbytes},
        "weight_map": dict(sorted(places.items())),
    }


def config(plan: Plan, source: dict[str, Any]) -> dict[str, Any]:
    """The new config.json: compressed-tensors' quantization_config, or the field by which MindIE
    knows msModelSlim's weights (vllm-ascend looks for the description file alone)."""
    if plan.format == "ascend":
        return {**source, "quantize": "w8a8_dynamic"}
    return {**source, "quantization_config": quantization_config(plan)}


def quantization_config(plan: Plan) -> dict[str, Any]:
    """As compressed-tensors 0.20 writes it: one group for all linear layers but the ignored."""
    scheme = plan.scheme
    kind = "int" if scheme.rule.stored == "int8" else "float"
    weights = {**_arguments(kind), "strategy": scheme.granularity, "observer": "minmax"}
    if scheme.granularity == "block":
        weights["block_structure"] = [BLOCK, BLOCK]
    inputs: dict[str, Any] | None = {**_arguments(kind), "strategy": "token", "dynamic": True}
    if scheme.activations == "group":
        inputs = {**_arguments(kind), "strategy": "group", "dynamic": True, "group_size": BLOCK}
    elif scheme.activations == "none":
        inputs = None
    form = "pack-quantized" if inputs is None else f"{kind}-quantized"
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": inputs,
        "output_activations": None,
        "format": form,
    }
    return {
        "config_groups": {"group_0": group},
        "format": form,
        "global_compression_ratio": None,
        "ignore": list(plan.ignored),
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }


def _arguments(kind: str) -> dict[str, Any]:
    return {
        "num_bits": 8,
        "type": kind,
        "symmetric": True,
        "dynamic": False,
        "group_size": None,
        "block_structure": None,
        "actorder": None,
        "observer": None,
        "observer_kwargs": {},
    }


def description(plan: Plan) -> dict[str, Any]:
    """msModelSlim's quant_model_description.json: every tensor and its type."""
    types = {
        stored.name: "W8A8_DYNAMIC" if step.quantised else "FLOAT"
        for shard in plan.shards
        for step in shard.steps
        for stored in step.stored
    }
    head = {
        "version": "1.0.0",
        "model_quant_type": "W8A8_DYNAMIC",
        "metadata": {},
        "group_size": 0,
    }
    return {**head, **types}
