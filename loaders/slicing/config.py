"""The facts of a config.json that decide how a model is cut, and how large its KV cache is.

Field names differ by family; the table below says where each fact may stand. Multimodal models keep
the language model's in `text_config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from loaders.checkpoint.dtypes import BY_NAME
from loaders.checkpoint.text import quoted
from loaders.slicing.errors import ConfigError

_NESTED: Final = ("text_config", "llm_config", "language_config")
_INTEGERS: Final = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num"),
    "head_dim": ("head_dim",),
    "vocab": ("vocab_size",),
    "intermediate": ("intermediate_size",),
    "moe_intermediate": ("moe_intermediate_size",),
    "experts": ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"),
    "shared_experts": ("n_shared_experts", "num_shared_experts"),
    "expert_groups": ("n_group",),
    "draft_layers": ("num_nextn_predict_layers", "mtp_num_hidden_layers"),
    "q_rank": ("q_lora_rank",),
    "kv_rank": ("kv_lora_rank",),
    "nope_dim": ("qk_nope_head_dim",),
    "rope_dim": ("qk_rope_head_dim",),
    "v_dim": ("v_head_dim",),
    "max_length": ("max_position_embeddings", "n_positions", "max_sequence_length"),
}
# No model has more. A plan lists each layer and each expert: a hostile number would never end.
_MOST: Final = {"layers": 1 << 16, "experts": 1 << 16, "draft_layers": 1 << 16}
_MOST_ELSE: Final = (1 << 31) - 1
_MAY_BE_ZERO: Final = {"draft_layers", "shared_experts", "experts", "expert_groups"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """`method` as config.json names it ("fp8", "compressed-tensors", "ascend", ...). `block` is
    (rows, columns) of a weight that share a scale, `group` columns of one row that do, `bits` those
    of an element that was packed. `by_activation`: GPTQ's desc_act, columns of a group anywhere."""

    method: str
    block: tuple[int, int] | None = None
    group: int | None = None
    bits: int | None = None
    by_activation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Sizes are elements, None where config.json doesn't say. `tied` is None where it doesn't say
    whether embedding and head are one tensor. `layer_types` as transformers writes them."""

    architecture: str | None = None
    model_type: str | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    vocab: int | None = None
    intermediate: int | None = None
    moe_intermediate: int | None = None
    experts: int | None = None
    shared_experts: int | None = None
    expert_groups: int | None = None
    draft_layers: int = 0
    q_rank: int | None = None
    kv_rank: int | None = None
    nope_dim: int | None = None
    rope_dim: int | None = None
    v_dim: int | None = None
    max_length: int | None = None
    tied: bool | None = None
    dtype: str | None = None
    layer_types: tuple[str, ...] | None = None
    quantisation: Quantisation | None = None

    @property
    def latent(self) -> bool:
        """Whether attention is MLA: one compressed vector a token instead of keys and values."""
        return self.kv_rank is not None and self.rope_dim is not None

    @property
    def head_size(self) -> int | None:
        """Elements of one key or value head."""
        if self.head_dim is not None or self.hidden is None or self.heads is None:
            return self.head_dim
        return self.hidden // self.heads


def facts_of(config: Mapping[str, Any]) -> ModelFacts:
    """The facts of a parsed config.json. ConfigError for a field that isn't of its type or is out
    of range; an absent one is None, and who needs it says so."""
    inner: Mapping[str, Any] = next(
        (config[key] for key in _NESTED if isinstance(config.get(key), Mapping)), {}
    )
    # The nested part is about the language model; quantisation and ties may stand outside only.
    both = {**config, **{key: value for key, value in inner.items() if value is not None}}
    sizes = {fact: _integer(both, fields, fact) for fact, fields in _INTEGERS.items()}
    if sizes["kv_heads"] is None:
        sizes["kv_heads"] = sizes["heads"]
    draft = sizes.pop("draft_layers") or 0
    names = config.get("architectures") or inner.get("architectures")
    kinds = both.get("layer_types")
    return ModelFacts(
        architecture=_text(names[0] if isinstance(names, list) and names else None),
        model_type=_text(both.get("model_type")),
        draft_layers=draft,
        tied=_boolean(both, "tie_word_embeddings"),
        dtype=_dtype(both.get("dtype", both.get("torch_dtype"))),
        layer_types=tuple(map(str, kinds)) if isinstance(kinds, list) else None,
        quantisation=_quantisation(both),
        **sizes,
    )


def needed(facts: ModelFacts, fact: str) -> int:
    """A fact that a rule can't do without. ConfigError, with the fields it may stand in."""
    value = getattr(facts, fact)
    if value is None:
        fields = " or ".join(_INTEGERS[fact])
        raise ConfigError(f"config.json: {fields} is needed for the plan and isn't there; add it")
    assert isinstance(value, int)
    return value


def _integer(config: Mapping[str, Any], fields: tuple[str, ...], fact: str) -> int | None:
    for field in fields:
        value = config.get(field)
        if value is None:
            continue
        least = 0 if fact in _MAY_BE_ZERO else 1
        most = _MOST.get(fact, _MOST_ELSE)
        if type(value) is not int or not least <= value <= most:
            raise ConfigError(
                f"config.json: {field}: expected a whole number of {least} to {most:,}, "
                f"found {quoted(value)}"
            )
        return value
    return None


def _boolean(config: Mapping[str, Any], field: str) -> bool | None:
    value = config.get(field)
    if value is None or isinstance(value, bool):
        return value
    raise ConfigError(f"config.json: {field}: expected true or false, found {quoted(value)}")


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _dtype(value: Any) -> str | None:
    if not isinstance(value, str) or value == "auto":
        return None
    name = value.removeprefix("torch.")
    name = {"half": "float16", "float": "float32"}.get(name, name)
    if name not in BY_NAME:
        raise ConfigError(
            f"config.json: dtype (or torch_dtype): expected one like bfloat16, "
            f"found {quoted(value)}"
        )
    return name


def _quantisation(config: Mapping[str, Any]) -> Quantisation | None:
    """From `quantization_config` (fp8, compressed-tensors, ...), its older name, or the `quantize`
    that msModelSlim leaves in config.json."""
    found = config.get("quantization_config", config.get("compression_config"))
    if not isinstance(found, Mapping):
        return Quantisation(method="ascend") if isinstance(config.get("quantize"), str) else None
    method = _text(found.get("quant_method")) or "unnamed"
    block, group = (
        _block(found.get("weight_block_size")),
        found.get("group_size", found.get("q_group_size")),
    )
    groups = found.get("config_groups")
    # compressed-tensors: one scheme for each group of layers. Their blocks are the same in what
    # is published; a tensor's own shape decides where a group has none.
    for scheme in groups.values() if isinstance(groups, Mapping) else ():
        weights = scheme.get("weights") if isinstance(scheme, Mapping) else None
        if isinstance(weights, Mapping):
            block = block or _block(weights.get("block_structure"))
            group = group or weights.get("group_size")
    if type(group) is not int or group < 1:  # -1 means one group, a whole row
        group = None
    bits = found.get("bits", found.get("w_bit"))
    if bits is not None and (type(bits) is not int or not 1 <= bits <= 32):
        raise ConfigError(
            f"config.json: quantization_config: bits: expected 1 to 32, found {quoted(bits)}"
        )
    return Quantisation(
        method=method,
        block=block,
        group=group,
        bits=bits,
        by_activation=found.get("desc_act") is True,
    )


def _block(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    sizes = value if isinstance(value, list) else str(value).lower().split("x")
    try:
        rows, columns = (int(size) for size in sizes)
    except ValueError:
        rows = columns = 0
    if rows < 1 or columns < 1:
        raise ConfigError(
            f"config.json: the block of a quantised weight: expected two sizes as in [128, 128], "
            f"found {quoted(value)}"
        )
    return rows, columns
