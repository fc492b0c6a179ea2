"""compressed-tensors' format: quantization_config in config.json against the tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from loaders.checkpoint.manifest import Problem, TensorSpec
from loaders.checkpoint.modules import PatternError, left_alone, matches
from loaders.checkpoint.text import shown

_FLOATS: Final = {"float16", "bfloat16", "float32", "float64"}
_STORED: Final = {("int", 8): "int8", ("float", 8): "float8_e4m3fn"}
_CHECKED: Final = {"int-quantized", "float-quantized", "naive-quantized", "pack-quantized"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One of config_groups: the modules it means, how their weights are stored and what shares a
    scale, and whether activations have static scales."""

    targets: tuple[str, ...]
    format: str
    stored: str | None
    strategy: str | None
    block: tuple[int, int] | None
    group_size: int | None
    symmetric: bool
    static_input: bool

    def means(self, module: str) -> bool:
        names = [target for target in self.targets if target.startswith("re:") or "." in target]
        classes = len(names) < len(self.targets)  # "Linear": can't be told from a name
        return classes or matches(module, names)


def config_of(config: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """quantization_config, if it is of this format."""
    given = (config or {}).get("quantization_config")
    if isinstance(given, dict) and given.get("quant_method") == "compressed-tensors":
        return given
    return None


def states(tensors: Sequence[TensorSpec]) -> dict[str, str]:
    """How the weight of each module is stored, of those that get quantised."""
    found = {}
    for tensor in tensors:
        module, _, kind = tensor.name.rpartition(".")
        if kind not in ("weight", "weight_packed") or len(tensor.shape) != 2:
            continue
        if left_alone(module) is None:
            stored = "packed" if kind == "weight_packed" else tensor.dtype
            found[module] = "not quantised" if stored in _FLOATS else stored
    return found


def problems(config: Mapping[str, Any], tensors: Sequence[TensorSpec]) -> list[Problem]:
    """What contradicts: missing or surplus scales and zero points, weights that are quantised
    though ignored or aren't though targeted, dtypes and shapes that the config doesn't say."""
    try:
        groups = _groups(config)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        text = f"config.json: quantization_config can't be understood ({type(error).__name__}: "
        return [_problem("quantisation-invalid", "config.json", f"{text}{shown(error)})")]
    unknown = sorted({group.format for group in groups} - _CHECKED)
    if unknown:
        text = f"scales of the format {shown(', '.join(unknown))} aren't examined"
        return [_problem("quantisation-unexamined", None, text, severity="warning")]
    ignored = config.get("ignore") or []
    if not isinstance(ignored, list) or not all(isinstance(one, str) for one in ignored):
        text = f"config.json: ignore is no list of names but {shown(ignored)}"
        return [_problem("quantisation-invalid", "config.json", text)]
    by_name = {tensor.name: tensor for tensor in tensors}
    found: list[Problem] = []
    try:
        for tensor in tensors:
            found += _of_tensor(tensor, by_name, groups, ignored)
    except PatternError as error:
        return [_problem("ignore-invalid", "config.json", f"config.json: ignore: {error}")]
    return found


def _groups(config: Mapping[str, Any]) -> list[Group]:
    groups = []
    for group in config["config_groups"].values():
        weights, inputs = group.get("weights"), group.get("input_activations") or {}
        if weights is None:
            continue
        block = weights.get("block_structure")
        size = weights.get("group_size")
        groups.append(
            Group(
                targets=tuple(map(str, group["targets"])),
                format=str(group.get("format") or config.get("format")),
                stored=_STORED.get((weights.get("type", "int"), weights["num_bits"])),
                strategy=weights.get("strategy"),
                block=None if block is None else (_size(block[0]), _size(block[1])),
                group_size=None if size in (None, -1, 0) else _size(size),
                symmetric=bool(weights.get("symmetric", True)),
                static_input=bool(inputs) and not inputs.get("dynamic", False),
            )
        )
    return groups


def _size(given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ValueError(f"expected a size from 1, found {shown(given)}")
    return given


def _of_tensor(
    tensor: TensorSpec,
    by_name: Mapping[str, TensorSpec],
    groups: Sequence[Group],
    ignored: Sequence[str],
) -> list[Problem]:
    module, _, kind = tensor.name.rpartition(".")
    if kind in ("weight_scale", "weight_zero_point", "input_scale", "input_zero_point"):
        return _of_companion(tensor, module, kind, by_name)
    if kind not in ("weight", "weight_packed") or len(tensor.shape) != 2:
        return []
    name = tensor.name
    group = next((group for group in groups if group.means(module)), None)
    skipped = matches(module, ignored)
    if kind == "weight" and tensor.dtype in _FLOATS:
        if skipped or group is None or left_alone(module) is not None:
            return []
        text = f"{shown(name)}: not quantised ({tensor.dtype}), and config.json doesn't ignore it: "
        return [_problem("float-not-ignored", name, text + "an engine expects quantised weights")]
    if skipped or group is None:
        why = "ignored" if skipped else "no target of it"
        text = f"{shown(name)}: quantised ({tensor.dtype}), and in config.json it is {why}: an "
        return [
            _problem("quantised-but-ignored", name, text + "engine takes the values as they are")
        ]
    found = []
    expected = "int32" if group.format == "pack-quantized" else group.stored
    if expected is not None and tensor.dtype != expected:
        text = f"{shown(name)}: config.json says {expected}, the file holds {tensor.dtype}"
        found.append(_problem("quantised-dtype", name, text))
    if kind == "weight_packed" and f"{module}.weight_shape" not in by_name:
        text = f"{shown(name)}: packed without {shown(module)}.weight_shape"
        found.append(_problem("scale-missing", name, text))
    return found + _scales(tensor, module, kind, group, by_name)


def _scales(
    tensor: TensorSpec, module: str, kind: str, group: Group, by_name: Mapping[str, TensorSpec]
) -> list[Problem]:
    found = []
    needed = ["weight_scale"]
    needed += [] if group.symmetric else ["weight_zero_point"]
    needed += ["input_scale"] if group.static_input else []
    for one in needed:
        if f"{module}.{one}" not in by_name:
            text = (
                f"{shown(tensor.name)}: config.json asks for {shown(module)}.{one}, and it is in "
            )
            found.append(_problem("scale-missing", tensor.name, text + "no file"))
    if not group.static_input and f"{module}.input_scale" in by_name:
        name = f"{module}.input_scale"
        text = f"{shown(name)}: there, though activations have no static scales in config.json"
        found.append(_problem("scale-surplus", name, text))
    scale = by_name.get(f"{module}.weight_scale")
    if scale is None or kind == "weight_packed":
        return found
    if (fits := _shapes(tensor.shape, group)) and scale.shape not in fits:
        text = f"{shown(scale.name)}: expected {' or '.join(map(str, fits))} for {group.strategy} "
        text += f"scales of a weight {tensor.shape}, found {scale.shape}"
        found.append(_problem("scale-shape", scale.name, text))
    if scale.dtype not in _FLOATS:
        text = f"{shown(scale.name)}: expected a floating dtype, found {scale.dtype}"
        found.append(_problem("scale-dtype", scale.name, text))
    return found


def _shapes(weight: tuple[int, ...], group: Group) -> list[tuple[int, ...]]:
    """What the scales' shape may be; empty where that isn't known."""
    rows, columns = weight
    if group.strategy == "tensor":
        return [(1,), ()]
    if group.strategy == "channel":
        return [(rows, 1)]
    if group.strategy == "block" and group.block is not None:
        return [(-(-rows // group.block[0]), -(-columns // group.block[1]))]
    if group.strategy == "group" and group.group_size:
        return [(rows, -(-columns // group.group_size))]
    return []


def _of_companion(
    tensor: TensorSpec, module: str, kind: str, by_name: Mapping[str, TensorSpec]
) -> list[Problem]:
    weight = by_name.get(f"{module}.weight_packed", by_name.get(f"{module}.weight"))
    if weight is not None and weight.dtype not in _FLOATS:
        return []
    what = "isn't there" if weight is None else f"isn't quantised ({weight.dtype})"
    text = f"{shown(tensor.name)}: a {kind} for {shown(module)}.weight, which {what}"
    return [_problem("scale-surplus", tensor.name, text)]


def _problem(code: str, tensor: str | None, message: str, **more: Any) -> Problem:
    file = tensor if tensor == "config.json" else None
    return Problem(code=code, file=file, tensor=None if file else tensor, message=message, **more)
