"""The state dict of a rank in the engine, for its `sharded_state` loader (vLLM 0.32).

That loader copies each tensor into the entry of the model's state dict that has its name, and ends
with an error for a name that isn't there and for an entry that no tensor filled. Entries beside the
plan's parameters are the scales of each attention's cache, 1.0 where the model isn't quantised
(layers/attention/attention.py, set_default_quant_scales). Of two entries that share memory the one
whose name sorts first is kept (_filter_subtensors): the head's for a tied embedding, and for
Qwen3-MoE the router's inside its experts. Experts lie in a module of their own (routed_experts).

Names were compared with the engine's for tiny models of the architectures below.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import torch

from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.text import quoted, shown
from loaders.slicing.errors import ConfigError, PlanError
from loaders.slicing.model import Model, model_of
from loaders.slicing.plan import RankPlan
from loaders.snapshot.state import Kept

_DENSE: Final = "dense"
_RENAMED: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "Qwen3MoeForCausalLM": (
        (".mlp.gate.weight", ".mlp.experts.gate.weight"),
        (".mlp.experts.w", ".mlp.experts.routed_experts.w"),
    ),
    "MixtralForCausalLM": (
        (".block_sparse_moe.experts.w", ".block_sparse_moe.experts.routed_experts.w"),
    ),
}
_SCALES: Final = ("_k_scale", "_v_scale", "_q_scale", "_prob_scale")
_EMBEDDING: Final = "model.embed_tokens.weight"
_HEAD: Final = "lm_head.weight"


def why_not(model: Model) -> str | None:
    """Why no sharded state that the engine accepts can be made of the model; None if it can."""
    facts = model.facts
    if facts.latent:
        return "its attention is latent (MLA): what the engine keeps of it isn't known here"
    if facts.quantisation is not None:
        return (
            f"it is quantised ({shown(facts.quantisation.method)}): the engine processes weights "
            "once more after it has read a sharded state, which spoils them"
        )
    dense = model.table.name == _DENSE and facts.architecture in model.table.architectures
    if not dense and facts.architecture not in _RENAMED:
        return f"what the engine calls the parameters of {quoted(facts.architecture)} isn't known"
    strange = next((one.spec.name for one in model.tensors if not _plain(one.spec.name)), None)
    if strange is not None:
        return f"its tensor {shown(strange)} isn't named as those of a language model alone"
    return None


def can_be_sharded(checkpoint: Checkpoint) -> bool:
    """Whether `coldload snapshot --format sharded-state` takes the checkpoint."""
    try:
        return why_not(model_of(checkpoint)) is None
    except (ConfigError, PlanError):
        return False


def _plain(name: str) -> bool:
    return name.startswith("model.") or name == _HEAD


def engine_name(name: str, model: Model, plan: RankPlan) -> str:
    """The entry of the engine's state dict that the plan's parameter `name` fills."""
    if name == _EMBEDDING and model.tied and plan.place.pp == plan.degrees.pp - 1:
        return _HEAD
    for found, instead in _RENAMED.get(model.facts.architecture or "", ()):
        if found in name:
            return name.replace(found, instead, 1)
    return name


def cache_scales(plan: RankPlan) -> Iterator[tuple[Kept, torch.Tensor]]:
    """The entries of this rank that no tensor of the checkpoint fills: 1.0, of no dimension."""
    for layer in range(*plan.layers):
        for scale in _SCALES:
            name = f"model.layers.{layer}.self_attn.attn.{scale}"
            yield Kept(name=name, dtype="float32", shape=()), torch.tensor(1.0)
