"""Ascend's format: msModelSlim's quant_model_description.json against the tensors.

The description is flat: a tensor's name and its type (FLOAT, W8A8, W8A8_DYNAMIC, ...), beside keys
that are no tensor names (version, model_quant_type, ...). Source: vllm-ascend main 182b75ea.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from loaders.checkpoint.manifest import Problem, TensorSpec
from loaders.checkpoint.modules import left_alone, module_of
from loaders.checkpoint.text import shown

FLOAT: Final = "FLOAT"
DYNAMIC: Final = "W8A8_DYNAMIC"
_NEEDED: Final = {
    # Static layers may have no weight_scale: deq_scale is its product with input_scale.
    "W8A8": ("input_scale", "input_offset", "deq_scale", "quant_bias"),
    DYNAMIC: ("weight_scale", "weight_offset"),
}
_COMPANIONS: Final = {name for names in _NEEDED.values() for name in names}
_FLOATS: Final = {"float16", "bfloat16", "float32", "float64"}


def entries(description: Mapping[str, Any]) -> dict[str, str]:
    """The entries that are about tensors."""
    return {
        name: kind for name, kind in description.items() if "." in name and isinstance(kind, str)
    }


def states(description: Mapping[str, Any]) -> dict[str, str]:
    """The type of each module's weight, of those that get quantised."""
    found = {
        module_of(name): kind
        for name, kind in entries(description).items()
        if name.endswith(".weight")
    }
    return {module: kind for module, kind in found.items() if left_alone(module) is None}


def problems(
    description: Mapping[str, Any], tensors: Sequence[TensorSpec], *, tied: bool
) -> list[Problem]:
    """Entries without their tensor, tensors without an entry, weights that aren't what their entry
    says, and missing or surplus companions. `tied` excuses an absent lm_head."""
    by_name = {tensor.name: tensor for tensor in tensors}
    described = entries(description)
    for name in by_name.keys() & description.keys() - described.keys():  # names without a dot
        described[name] = str(description[name])
    found = []
    for name, kind in described.items():
        if name not in by_name and not (tied and name == "lm_head.weight"):
            text = f"{shown(name)}: described as {shown(kind)}, and it is in no file"
            found.append(_problem("described-but-absent", name, text))
    for tensor in tensors:
        found += _of_tensor(tensor, described, by_name)
    return found


def _of_tensor(
    tensor: TensorSpec, described: Mapping[str, str], by_name: Mapping[str, TensorSpec]
) -> list[Problem]:
    module, _, last = tensor.name.rpartition(".")
    kind = described.get(tensor.name)
    found = []
    if kind is None:
        text = f"{shown(tensor.name)}: in {shown(tensor.file)}, and the description doesn't name it"
        found.append(
            Problem(
                code="not-described",
                tensor=tensor.name,
                message=text,
                # Only weights are looked up; without their entry an engine stops.
                severity="error" if last == "weight" else "warning",
            )
        )
    if last == "weight" and kind is not None:
        found += _weight(tensor, kind, module, by_name)
    if last in _COMPANIONS:
        kind = described.get(f"{module}.weight")
        if kind in (None, FLOAT):
            what = f"of {shown(module)}.weight, which is " + (
                "not described" if kind is None else f"described as {kind}"
            )
            text = f"{shown(tensor.name)}: a {last} {what}"
            found.append(_problem("scale-surplus", tensor.name, text))
    return found


def _weight(
    tensor: TensorSpec, kind: str, module: str, by_name: Mapping[str, TensorSpec]
) -> list[Problem]:
    name = tensor.name
    floating = tensor.dtype in _FLOATS
    if (kind == FLOAT and not floating) or (kind.startswith(("W4", "W8")) and floating):
        text = f"{shown(name)}: described as {shown(kind)}, the file holds {tensor.dtype}"
        return [_problem("quantised-dtype", name, text)]
    found = []
    for one in _NEEDED.get(kind, ()):
        companion = by_name.get(f"{module}.{one}")
        if companion is None:
            text = f"{shown(name)}: {kind} needs {shown(module)}.{one}, and it is in no file"
            found.append(_problem("scale-missing", name, text))
        elif one in ("weight_scale", "weight_offset"):
            found += _per_channel(tensor, companion)
    return found


def _per_channel(weight: TensorSpec, companion: TensorSpec) -> list[Problem]:
    found = []
    rows = weight.shape[:1] or (1,)
    if companion.shape not in ((*rows, 1), rows):
        text = f"{shown(companion.name)}: expected {(*rows, 1)} for a weight of {weight.shape}, "
        text += f"found {companion.shape}"
        found.append(_problem("scale-shape", companion.name, text))
    if companion.dtype not in _FLOATS:
        text = f"{shown(companion.name)}: expected a floating dtype, found {companion.dtype}"
        found.append(_problem("scale-dtype", companion.name, text))
    return found


def _problem(code: str, tensor: str, message: str) -> Problem:
    return Problem(code=code, tensor=tensor, message=message)
