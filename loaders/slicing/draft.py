"""The layers for multi-token prediction as the model that they are: one that the engine loads
beside the main one, from the same files (vLLM 0.33, models/deepseek_mtp.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from loaders.checkpoint.manifest import Checkpoint
from loaders.slicing.model import Model, model_of, named_by
from loaders.slicing.rules import Rule, Table
from loaders.slicing.whole import whole

_AT: Final = "layers.{layer}."
RULES: Final = (
    Rule(
        names=(f"{_AT}embed_tokens", f"{_AT}shared_head.head"),
        kind="embedding",
        cut="vocab",
    ),
    Rule(
        names=(f"{_AT}eh_proj", f"{_AT}enorm", f"{_AT}hnorm", f"{_AT}shared_head.norm"),
        kind="draft",
        cut="whole",
    ),
)
"""What a draft layer has beside that which the model's other layers have, too."""


def draft_of(checkpoint: Checkpoint, table: Table | None = None) -> Model | None:
    """The draft model of a checkpoint, None where it has none; its facts are the main model's.
    Raises as `model_of`."""
    main = model_of(checkpoint, table)
    draft = whole(main, checkpoint).draft
    if draft is None:
        return None
    own = set(draft.tensors)
    rules = replace(main.table, rules=(*RULES, *main.table.rules))
    specs = [spec for spec in checkpoint.tensors if spec.name in own]
    named = tuple(named_by(specs, rules, main.facts))
    return replace(main, table=rules, tensors=named, skipped={}, tied=False, notes=())
