"""A checkpoint as its rules see it: every tensor with its rule, layer, expert and weight."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from loaders.checkpoint.manifest import Checkpoint, TensorSpec
from loaders.checkpoint.text import count, listed, quoted, shown
from loaders.slicing.config import ModelFacts, facts_of
from loaders.slicing.errors import ConfigError, PlanError, RulesError
from loaders.slicing.rules import Rule, Table, built_in, table_for, table_names

WEIGHTS: Final = ("weight", "weight_packed", "qweight")
# What lies beside a weight and is cut as it is, where it has the dimension (facts of
# compressed-tensors, of fp8 checkpoints and of vllm-ascend's quantisation).
FOLLOWING: Final = (
    "bias",
    "weight_scale",
    "weight_scale_inv",
    "weight_scale_2",
    "weight_offset",
    "weight_zero_point",
    "deq_scale",
    "quant_bias",
    "qzeros",
    "scales",
    "g_idx",
)
TRANSPOSED: Final = ("qweight", "qzeros", "scales")  # [in, out], as GPTQ and AWQ store them
# Whose tensors were looked at; what any other means by an int8 is anybody's guess.
EXAMINED: Final = {
    "fp8", "compressed-tensors", "ascend", "gptq", "gptq_marlin", "awq", "awq_marlin",
}  # fmt: skip
# What every rank keeps whole, whatever its size.
WHOLE: Final = (
    "input_scale",
    "input_offset",
    "input_zero_point",
    "input_global_scale",
    "weight_global_scale",
    "weight_shape",
    "e_score_correction_bias",
    "inv_freq",
    "q_scale",
    "k_scale",
    "v_scale",
    "output_scale",
)
_ATTRIBUTES: Final = {*WEIGHTS, *FOLLOWING, *WHOLE}
# Beside a tensor that is named without ".weight" (experts stored as one tensor).
_BARE: Final = {"_scale_inv": "weight_scale_inv", "_scale": "weight_scale", "_bias": "bias"}
TOWER: Final = "vision tower"  # the kind of the rule for what sees pictures
_TOWER: Final = re.compile(
    r"(?:model\.)?(?:visual|vision_tower|vision_model|multi_modal_projector|mm_projector)\."
)
_LAYER: Final = re.compile(r"(?:^|\.)layers\.(\d+)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """One tensor with its rule. `attribute` is "weight", "bias", "weight_scale", ...; `weight` the
    tensor that it follows, itself where it is one or has none beside it."""

    spec: TensorSpec
    rule: Rule
    module: str
    attribute: str
    layer: int | None
    expert: int | None
    weight: TensorSpec

    @property
    def packed(self) -> bool:
        """Whether its weight is one that GPTQ or AWQ packed (loaders.slicing.packed)."""
        return self.weight.name.endswith(".qweight")

    @property
    def out_dim(self) -> int:
        """The dimension in which parts of a fused parameter stand behind each other."""
        return 1 if self.attribute in TRANSPOSED else self.rule.out_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A checkpoint that can be planned. `tied`: embedding and head are one. `skipped` as in
    RankPlan; `notes` are sentences about what was assumed."""

    facts: ModelFacts
    table: Table
    tensors: tuple[Named, ...]
    skipped: dict[str, str]
    tied: bool
    notes: tuple[str, ...]

    @property
    def experts(self) -> int:
        """How many experts a layer has; 0 for a model without."""
        return self.facts.experts or 0


def model_of(checkpoint: Checkpoint, table: Table | None = None) -> Model:
    """The checkpoint under `table`, or under the built-in table of its architecture.

    ConfigError without a config.json; RulesError if no rule names some tensor, or no table the
    architecture and its names.
    """
    if checkpoint.config is None:
        raise ConfigError(
            f"{checkpoint.origin}: no config.json (or an invalid one) beside the weights; heads, "
            "layers and experts stand there and nowhere else: download or write it"
        )
    facts = facts_of(checkpoint.config)
    main, skipped, notes = _without_drafts(checkpoint.tensors, facts)
    if table is None:
        table = table_for(facts.architecture)
    if table is None:
        table = _by_names(main, facts)
        notes.append(
            f"no rules are known for {_kind(facts)}; the names are those of {table.name!r}, whose "
            "rules were used. Check them, or pass your own with --rules"
        )
    named = named_by(main, table, facts)
    notes += _unexamined(named, facts)
    has_head = any(one.rule.tied for one in named)
    tied = facts.tied if facts.tied is not None else not has_head
    kept: list[Named] = []
    for one in named:
        if one.attribute == "g_idx" and one.rule.parts and one.rule.parts[-1] != one.rule.of[-1]:
            skipped[one.spec.name] = "a fused matrix has one g_idx, that of its last part"
        elif one.rule.cut == "skip":
            skipped[one.spec.name] = one.rule.why or "the rules leave it out"
        elif one.rule.tied and tied:
            skipped[one.spec.name] = "tied: the head is the embedding"
        else:
            kept.append(one)
    _check_experts(kept, facts)
    if any(one.rule.kind == TOWER for one in kept):
        notes.append(
            "the vision tower is planned whole on every rank; an engine that divides it holds "
            "less (a table of --rules can say so)"
        )
    return Model(
        facts=facts,
        table=table,
        tensors=tuple(kept),
        skipped=skipped,
        tied=tied,
        notes=tuple(notes),
    )


def _unexamined(tensors: Sequence[Named], facts: ModelFacts) -> list[str]:
    """Whole numbers as weights mean what their quantisation says: told where that is unknown."""
    method = None if facts.quantisation is None else facts.quantisation.method
    integers = [
        one.spec
        for one in tensors
        if one.attribute in WEIGHTS and one.spec.dtype in {"int8", "uint8", "int32"}
    ]
    if method in EXAMINED or not integers:
        return []
    said = (
        "config.json names no quant_method" if method is None else f"quant_method {quoted(method)}"
    )
    return [
        f"{count(len(integers), 'weight')} of whole numbers ({shown(integers[0].name)} is "
        f"{integers[0].dtype}), but {said}, whose layout was not examined: they are cut as "
        f"plain [out, in] matrices. Examined are {listed(sorted(EXAMINED), 10)}"
    ]


def layer_of(name: str) -> int | None:
    """The number of the language model's layer that a tensor's name says it is in; a vision tower's
    layers are counted by themselves."""
    match = None if _TOWER.match(name) else _LAYER.search(name)
    return int(match[1]) if match else None


def _without_drafts(
    tensors: Sequence[TensorSpec], facts: ModelFacts
) -> tuple[list[TensorSpec], dict[str, str], list[str]]:
    """Layers from num_hidden_layers on are for multi-token prediction: a draft model of its own,
    which the main model doesn't load (vLLM 0.33, deepseek_v2.py)."""
    main: list[TensorSpec] = []
    skipped: dict[str, str] = {}
    beyond: set[int] = set()
    for spec in tensors:
        layer = layer_of(spec.name)
        if facts.layers is not None and layer is not None and layer >= facts.layers:
            skipped[spec.name] = f"layer {layer} is a draft layer: the model has {facts.layers}"
            beyond.add(layer)
        else:
            main.append(spec)
    if len(beyond) > facts.draft_layers:
        return (
            main,
            skipped,
            [
                f"the files hold {listed(sorted(beyond))} as layer(s), config.json says "
                f"{facts.layers} layers and {facts.draft_layers} for multi-token prediction; those "
                "from that number on are left out"
            ],
        )
    return main, skipped, []


def _kind(facts: ModelFacts) -> str:
    if facts.architecture or facts.model_type:
        return quoted(facts.architecture or facts.model_type)
    return "this model (config.json names no architecture)"


def _by_names(tensors: Sequence[TensorSpec], facts: ModelFacts) -> Table:
    """The built-in table with the fewest rules that names every tensor."""
    for table in sorted(map(built_in, table_names()), key=lambda table: len(table.rules)):
        if all(_split(spec.name, table) is not None for spec in tensors):
            return table
    fewest = min(map(built_in, table_names()), key=lambda table: len(_unknown(tensors, table)))
    names = _unknown(tensors, fewest)
    raise RulesError(
        f"no rules are known for {_kind(facts)}, and its tensors aren't named as those of any "
        f"other ({len(names)} unlike {fewest.name!r}: {listed(names, 3)}); write a table of rules "
        "and pass it with --rules FILE.toml"
    )


def _unknown(tensors: Sequence[TensorSpec], table: Table) -> list[str]:
    return [spec.name for spec in tensors if _split(spec.name, table) is None]


def _split(name: str, table: Table) -> tuple[str, str, Rule, int | None, int | None] | None:
    """Module, attribute, rule, layer and expert of a name; None if no rule names it."""
    module, _, attribute = name.rpartition(".")
    if attribute in _ATTRIBUTES:
        match = table.match(module)
        return None if match is None else (module, attribute, *match)
    if (match := table.match(name)) is not None:
        return (name, "weight", *match)
    for ending, attribute in _BARE.items():
        if name.endswith(ending) and (match := table.match(name.removesuffix(ending))):
            return (name.removesuffix(ending), attribute, *match)
    return None


def named_by(tensors: Sequence[TensorSpec], table: Table, facts: ModelFacts) -> list[Named]:
    """Each tensor with its rule. RulesError if the table has none for some."""
    splits = [(spec, *found) for spec in tensors if (found := _split(spec.name, table))]
    if len(splits) < len(tensors):
        unknown = _unknown(tensors, table)
        raise RulesError(
            f"{len(unknown)} of {len(tensors)} tensors have no rule for {_kind(facts)} (table "
            f"{table.name!r}): {listed(unknown, 3)}; write a table that extends it and pass it "
            "with --rules FILE.toml"
        )
    weights = {module: spec for spec, module, name, *_ in splits if name in WEIGHTS}
    return [
        Named(
            spec=spec,
            rule=rule,
            module=module,
            attribute=attribute,
            layer=layer,
            expert=expert,
            weight=weights.get(module, spec),
        )
        for spec, module, attribute, rule, layer, expert in splits
    ]


def _check_experts(tensors: Sequence[Named], facts: ModelFacts) -> None:
    """An expert beyond those of config.json would be on no rank, silently."""
    with_experts = [one for one in tensors if one.rule.experts]
    if not with_experts:
        return
    if not facts.experts:
        raise ConfigError(
            f"{shown(with_experts[0].spec.name)}: the files hold experts, but config.json doesn't "
            "say how many (n_routed_experts, num_experts or num_local_experts); add it"
        )
    for one in with_experts:
        if one.expert is not None and one.expert >= facts.experts:
            raise PlanError(
                f"{shown(one.spec.name)}: expert {one.expert}, but config.json says "
                f"{facts.experts} experts (0 to {facts.experts - 1})"
            )
        stacked = one.rule.stacked is not None and one.attribute in WEIGHTS
        if stacked and one.spec.shape[:1] != (facts.experts,):
            raise PlanError(
                f"{shown(one.spec.name)}: shape {list(one.spec.shape)}, but config.json says "
                f"{facts.experts} experts, which the first dimension should be"
            )
