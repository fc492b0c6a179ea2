"""Whether a checkpoint makes its model whole: parameters that it doesn't fill, tensors that no
parameter takes, ties, and a draft model beside the main one. Pure; told, not refused, because a
part of a model can be planned and loaded, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.text import count, listed
from loaders.slicing.build import target_of
from loaders.slicing.model import WEIGHTS, Model, Named, layer_of

_ATTRIBUTES = {**dict.fromkeys(WEIGHTS, "weight"), "bias": "bias"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfilled:
    """A parameter of the engine's that stays unfilled, wholly or in part, and what it lacks."""

    parameter: str
    lacks: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The layers for multi-token prediction: a model of its own, loaded beside the main one, with
    bytes of its own."""

    layers: tuple[int, ...]
    tensors: tuple[str, ...]
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """`surplus`: tensor -> why no parameter takes it. `tied`: tensors that are another one's and
    count once. `draft` is None for a checkpoint without."""

    unfilled: tuple[Unfilled, ...]
    surplus: Mapping[str, str]
    tied: tuple[str, ...]
    draft: Draft | None


def whole(model: Model, checkpoint: Checkpoint) -> Whole:
    """What the checkpoint lacks and what it has too much of, for the model of its config.json."""
    sizes = {spec.name: spec.nbytes for spec in checkpoint.tensors}
    layers, drafts = model.facts.layers or 0, model.facts.draft_layers
    surplus: dict[str, str] = {}
    tied: list[str] = []
    own: list[str] = []
    for name, reason in model.skipped.items():
        layer = layer_of(name)
        if layer is not None and layers <= layer < layers + drafts:
            own.append(name)
        elif reason.startswith("tied"):
            tied.append(name)
        else:
            surplus[name] = reason
    draft = None
    if own:
        numbers = sorted({layer for name in own if (layer := layer_of(name)) is not None})
        nbytes = sum(sizes[name] for name in own)
        draft = Draft(layers=tuple(numbers), tensors=tuple(own), nbytes=nbytes)
    return Whole(unfilled=tuple(unfilled(model)), surplus=surplus, tied=tuple(tied), draft=draft)


def unfilled(model: Model) -> Iterator[Unfilled]:
    """Every parameter that the files fill in part or not at all: parts and experts that are
    missing, what other layers have, whole layers, and what belongs to no layer."""
    weights = [one for one in model.tensors if one.attribute in WEIGHTS]
    yield from _parts(weights)
    yield from _experts(model, weights)
    yield from _unlike_other_layers(model)
    yield from _whole_layers(model)
    yield from _outside_layers(model, weights)


def _parts(weights: Sequence[Named]) -> Iterator[Unfilled]:
    """Fused parameters of which some parts are there. For experts, each by itself."""
    there: dict[tuple[str, int | None], list[Named]] = {}
    for one in weights:
        there.setdefault((target_of(one), one.expert), []).append(one)
    for (target, expert), some in there.items():
        parts = {part for one in some for part in one.rule.parts}
        lacking = [part for part in some[0].rule.of if part not in parts]
        alone = any(one.rule.alone is not None for one in some) and len(some) == 1
        if lacking and not alone:
            of = "" if expert is None else f" of expert {expert}"
            yield Unfilled(parameter=target, lacks=f"its part {listed(lacking)}{of}")


def _experts(model: Model, weights: Sequence[Named]) -> Iterator[Unfilled]:
    ids: dict[str, set[int]] = {}
    for one in weights:
        if one.expert is not None:
            ids.setdefault(target_of(one), set()).add(one.expert)
    for target, found in ids.items():
        absent = [number for number in range(model.experts) if number not in found]
        if absent:
            lacks = f"{count(len(absent), 'expert')} of {model.experts}: {listed(absent)}"
            yield Unfilled(parameter=target, lacks=lacks)


def _signatures(model: Model) -> dict[int, dict[str, str]]:
    """layer -> {parameter without its number: parameter}."""
    found: dict[int, dict[str, str]] = {}
    for one in model.tensors:
        kind = _ATTRIBUTES.get(one.attribute)
        if one.layer is None or kind is None:
            continue
        target = target_of(one)
        bare = target.removesuffix(one.attribute) + kind
        bare = bare.replace(f"layers.{one.layer}.", "layers.#.", 1)
        found.setdefault(one.layer, {})[bare] = target
    return found


def _unlike_other_layers(model: Model) -> Iterator[Unfilled]:
    """What a layer lacks: parameters that the most usual of those layers has that have all of its
    own and more. Dense and expert layers each have something that the others lack; layers of kinds
    that config.json tells apart (layer_types) are compared with their own kind."""
    kinds = model.facts.layer_types or ()
    found = _signatures(model)
    by_kind: dict[str, Counter[frozenset[str]]] = {}
    for layer, own in found.items():
        kind = kinds[layer] if layer < len(kinds) else ""
        by_kind.setdefault(kind, Counter())[frozenset(own)] += 1
    for layer, own in sorted(found.items()):
        kind = kinds[layer] if layer < len(kinds) else ""
        mine = frozenset(own)
        larger = [(n, other) for other, n in by_kind[kind].items() if other > mine]
        if not larger:
            continue
        for bare in sorted(max(larger, key=lambda each: (each[0], -len(each[1])))[1] - mine):
            yield Unfilled(
                parameter=bare.replace("layers.#.", f"layers.{layer}.", 1),
                lacks="every tensor of it; other layers have it",
            )


def _whole_layers(model: Model) -> Iterator[Unfilled]:
    if model.facts.layers is None:
        return
    there = {one.layer for one in model.tensors}
    for layer in range(model.facts.layers):
        if layer not in there:
            yield Unfilled(
                parameter=f"{_prefix(model)}layers.{layer}.*",
                lacks=f"every tensor; config.json says {model.facts.layers} layers",
            )


def _outside_layers(model: Model, weights: Sequence[Named]) -> Iterator[Unfilled]:
    """The embedding, the last norm and the head, as far as the table has rules for them."""
    there = {id(one.rule) for one in weights}
    for rule in model.table.rules:
        if rule.stage is None or rule.cut == "skip" or id(rule) in there:
            continue
        if rule.tied and model.tied:
            continue
        name = rule.names[0]
        if any(mark in name for mark in "*{"):
            continue
        prefix = "" if rule.tied else _prefix(model)
        lacks = "every tensor of it"
        if rule.tied:
            lacks += "; config.json doesn't tie it to the embedding (tie_word_embeddings)"
        yield Unfilled(parameter=f"{prefix}{name}.weight", lacks=lacks)


def _prefix(model: Model) -> str:
    """What stands before `layers.` in this checkpoint's names."""
    for one in model.tensors:
        before, found, _ = one.spec.name.partition("layers.")
        if one.layer is not None and found:
            return before
    return "model."
