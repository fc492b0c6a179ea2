"""What tensor names say about the modules of a model: which are linear layers that get quantised,
which an engine fuses into one, and which an ignore list means.

Names are those of Hugging Face checkpoints. Engines fuse layers that read the same input (qkv_proj)
and all routed experts of a layer; what is fused has one format, so its parts must agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

FUSED: Final[Mapping[str, tuple[str, ...]]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "w13": ("w1", "w3"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}
"""The engine's module and its parts in the checkpoint (vLLM 0.33, packed_modules_mapping)."""

_FUSED_INTO: Final = {part: whole for whole, parts in FUSED.items() for part in parts}
_EXPERT: Final = re.compile(r"(.*\bexperts)\.\d+\.")
_HEADS: Final = {"lm_head", "embed_out", "shared_head"}
_HEADS_AT_THE_END: Final = {"output", "score"}  # BERT has layers named attention.output.dense
_ROUTERS: Final = {"gate", "router", "shared_expert_gate", "weights_proj"}
_EMBEDDINGS: Final = re.compile(r"(^|\.)(embed\w*|\w*embedding(s)?|wte|wpe)(\.|$)")
_OTHER_INPUTS: Final = re.compile(r"(^|\.)(visual|vision_\w+|audio_\w+|\w*projector)(\.|$)")


class PatternError(ValueError):
    """An entry of an ignore list that is no regular expression."""


def module_of(tensor: str) -> str:
    """`model.layers.0.mlp.up_proj` for `model.layers.0.mlp.up_proj.weight`."""
    return tensor.rpartition(".")[0]


def left_alone(module: str) -> str | None:
    """Why the field's tools don't quantise a module of that name, None if they do: output heads,
    embeddings, routers, the draft layer's projection and the encoders of other inputs (the
    recipes of llm-compressor 0.9 and msModelSlim)."""
    parts = module.split(".")
    if _HEADS.intersection(parts) or parts[-1] in _HEADS_AT_THE_END:
        return "an output head"
    if _EMBEDDINGS.search(module):
        return "an embedding"
    if _ROUTERS.intersection(parts):
        return "a router"
    if parts[-1] == "eh_proj":
        return "the draft layer's input projection"
    if _OTHER_INPUTS.search(module):
        return "an encoder of other inputs"
    return None


def fused_names(module: str) -> tuple[str, ...]:
    """The engine's modules that this one becomes a part of, the innermost first: `...experts` for
    all that belongs to routed experts, `...qkv_proj` for its parts. Empty if none."""
    parent, _, leaf = module.rpartition(".")
    whole = _FUSED_INTO.get(leaf)
    names = [f"{parent}.{whole}" if parent else whole] if whole else []
    expert = _EXPERT.match(module)
    return (*names, expert.group(1)) if expert else tuple(names)


def matches(module: str, patterns: Iterable[str]) -> bool:
    """Whether an ignore list means that module: an entry is its name, or `re:` and an expression
    that its name begins with (compressed-tensors 0.20, match_name), and the same for every module
    that it is fused into. PatternError."""
    names = (module, *fused_names(module))
    return any(_matches(name, pattern) for pattern in patterns for name in names)


def _matches(name: str, pattern: str) -> bool:
    if not pattern.startswith("re:"):
        return name == pattern
    try:
        return re.match(pattern.removeprefix("re:"), name) is not None
    except re.error as error:
        raise PatternError(f"{pattern!r} is no regular expression: {error}") from error


def disagreements(states: Mapping[str, str]) -> dict[str, dict[str, list[str]]]:
    """Of modules and their states (a format's name, or that they are left as they are): the fused
    ones whose parts differ, each with its parts by state. A disagreement among a layer's experts is
    told once, for all of them."""
    groups: dict[str, dict[str, list[str]]] = {}
    for module, state in states.items():
        names = fused_names(module)
        if names:
            groups.setdefault(names[-1], {}).setdefault(state, []).append(module)
    return {group: parts for group, parts in groups.items() if len(parts) > 1}
