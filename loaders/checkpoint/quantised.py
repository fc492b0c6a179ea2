"""Whether a quantised checkpoint says what it holds: its description against its tensors.

Two formats: compressed-tensors (config.json's quantization_config) and Ascend's, of msModelSlim
(quant_model_description.json). Both ways: what is described is there, and what is there is
described. Of the tensors only scales are read (loaders.checkpoint.scale_values).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from loaders.checkpoint import ascend_format, compressed_format, strict_json
from loaders.checkpoint.manifest import Checkpoint, Problem
from loaders.checkpoint.modules import disagreements
from loaders.checkpoint.strict_json import StrictJsonError
from loaders.checkpoint.text import listed, shown
from loaders.store.address import is_address

DESCRIPTION: Final = "quant_model_description.json"
SCALES: Final = (".weight_scale", ".weight_scale_inv", ".input_scale", ".output_scale")
_MOST: Final = 20  # of a kind


def with_quantisation(checkpoint: Checkpoint) -> Checkpoint:
    """The same manifest with what is wrong about its quantisation among the problems; itself where
    it isn't quantised in a known format. Reads the description file and the scales, if they lie
    in a folder."""
    if checkpoint.errors:  # what is missing there would be told a second time
        return checkpoint
    problems = _compressed(checkpoint.config)
    config = compressed_format.config_of(checkpoint.config)
    if config is not None and not problems:
        problems = compressed_format.problems(config, checkpoint.tensors)
        problems += _fused(compressed_format.states(checkpoint.tensors))
    description, faults = _description(checkpoint.root)
    problems += faults
    if description is not None:
        problems += ascend_format.problems(
            description, checkpoint.tensors, tied=_tied(checkpoint.config)
        )
        problems += _fused(ascend_format.states(description))
    if config is None and description is None and not problems:
        problems = _unexamined(checkpoint)
    problems += _values(checkpoint)
    if not problems:
        return checkpoint
    found = (*checkpoint.problems, *_shortened(problems))
    ordered = sorted(found, key=lambda problem: problem.severity)
    return replace(checkpoint, problems=tuple(ordered))


def _values(checkpoint: Checkpoint) -> list[Problem]:
    """What is wrong with the numbers that the scales hold. Of what lies at an address nothing is
    read."""
    scales = [spec for spec in checkpoint.tensors if spec.name.endswith(SCALES)]
    if not scales or checkpoint.format != "safetensors" or is_address(checkpoint.root):
        return []
    # Imported here, since numpy takes a while and most checkpoints have no scales.
    from loaders.checkpoint.scale_values import problems_of

    return [problem for spec in scales for problem in problems_of(checkpoint.root, spec)]


def _compressed(config: Mapping[str, Any] | None) -> list[Problem]:
    given = (config or {}).get("quantization_config")
    if given is None or isinstance(given, dict):
        return []
    text = f"config.json: quantization_config is no JSON object but {shown(given)}"
    return [Problem(code="quantisation-invalid", file="config.json", message=text)]


def _unexamined(checkpoint: Checkpoint) -> list[Problem]:
    """int8 weights under a method whose scales nobody here knows: they mustn't pass for sound."""
    given = (checkpoint.config or {}).get("quantization_config")
    integers = [
        spec.name
        for spec in checkpoint.tensors
        if spec.dtype == "int8" and len(spec.shape) == 2 and spec.name.endswith(".weight")
    ]
    if not isinstance(given, dict) or not integers:
        return []
    text = (
        f"quant_method {shown(given.get('quant_method'))}: {len(integers)} int8 weight(s) "
        f"({shown(integers[0])}, ...) and what belongs to them aren't examined"
    )
    return [Problem(code="quantisation-unexamined", severity="warning", message=text)]


def _description(root: str) -> tuple[dict[str, Any] | None, list[Problem]]:
    path = Path(root) / DESCRIPTION
    if is_address(root) or not path.is_file():
        return None, []
    try:
        value = strict_json.loads(path.read_bytes())
    except (OSError, StrictJsonError) as error:
        return None, [_invalid(f"can't be read: {error}")]
    if not isinstance(value, dict):
        return None, [_invalid("is no JSON object")]
    return value, []


def _invalid(what: str) -> Problem:
    text = f"{DESCRIPTION}: {what}; an engine that needs it stops there"
    return Problem(code="quantisation-invalid", file=DESCRIPTION, message=text)


def _tied(config: Mapping[str, Any] | None) -> bool:
    return bool((config or {}).get("tie_word_embeddings"))


def _fused(states: Mapping[str, str]) -> list[Problem]:
    """Parts of what an engine fuses that aren't quantised alike."""
    return [
        Problem(
            code="fused-parts-disagree",
            tensor=group,
            message=f"{shown(group)}: an engine fuses these, and they aren't quantised alike: "
            + "; ".join(f"{state}: {listed(sorted(parts))}" for state, parts in states.items())
            + "; quantise or ignore all of them",
        )
        for group, states in disagreements(states).items()
    ]


def _shortened(problems: Iterable[Problem]) -> list[Problem]:
    """At most 20 of a kind, and one more that counts the rest."""
    kinds: dict[str, list[Problem]] = {}
    for problem in problems:
        kinds.setdefault(problem.code, []).append(problem)
    short: list[Problem] = []
    for code, same in kinds.items():
        short += same[:_MOST]
        if len(same) > _MOST:
            text = f"and {len(same) - _MOST:,} more problems of the kind {code}"
            short.append(replace(same[-1], file=None, tensor=None, message=text))
    return short
