"""What a checkpoint lacks for its parameters to be whole: told, not refused, because a part of a
model can be planned too."""

from __future__ import annotations

from loaders.checkpoint.text import count, listed, shown
from loaders.slicing.build import target_of
from loaders.slicing.model import WEIGHTS, Model

_MOST = 5


def missing(model: Model) -> tuple[str, ...]:
    """Sentences about weights of which some parts or experts are in the files and others aren't;
    at most five, with the number of the rest."""
    parts: dict[str, set[str]] = {}
    wanted: dict[str, tuple[str, ...]] = {}
    may_be_alone: dict[str, set[str]] = {}
    experts: dict[str, set[int]] = {}
    for one in model.tensors:
        if one.attribute not in WEIGHTS:
            continue
        target = target_of(one)
        parts.setdefault(target, set()).update(one.rule.parts)
        wanted[target] = one.rule.of
        if one.rule.alone is not None:
            may_be_alone[target] = set(one.rule.parts)
        if one.expert is not None:
            experts.setdefault(target, set()).add(one.expert)
    found = [
        f"{shown(target)}: the files hold its {listed(sorted(there))}, not its "
        f"{listed([part for part in wanted[target] if part not in there])}"
        for target, there in parts.items()
        if not there >= set(wanted[target]) and there != may_be_alone.get(target)
    ]
    for target, ids in experts.items():
        absent = [id for id in range(model.experts) if id not in ids]
        if absent:
            found.append(
                f"{shown(target)}: {count(len(absent), 'expert')} of {model.experts} not in the "
                f"files: {listed(absent)}"
            )
    rest = len(found) - _MOST
    return (*found[:_MOST], *([f"and {rest} more of that kind"] if rest > 0 else ()))
