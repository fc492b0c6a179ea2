"""What becomes of each tensor: which are quantised, which stay, and the files they go to.

Arithmetic on a manifest. No file is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from loaders.checkpoint.dtypes import itemsize
from loaders.checkpoint.manifest import Checkpoint, TensorSpec
from loaders.checkpoint.modules import disagreements, left_alone, matches, module_of
from loaders.checkpoint.quantised import DESCRIPTION
from loaders.checkpoint.text import listed, quoted, shown
from loaders.quantise.schemes import (
    WEIGHT_DTYPES,
    Scheme,
    scale_dtype,
    scale_shape,
    scheme,
)

Format = Literal["compressed-tensors", "ascend"]
FORMATS: Final[tuple[Format, ...]] = ("compressed-tensors", "ascend")
DEFAULT: Final[dict[Format, str]] = {
    "compressed-tensors": "int8-channel",
    "ascend": "int8-channel-127",
}
WRITABLE: Final[dict[Format, tuple[str, ...]]] = {
    "compressed-tensors": (
        "int8-channel",
        "int8-tensor",
        "int8-weight-only",
        "fp8-channel",
        "fp8-tensor",
        "fp8-block",
    ),
    "ascend": ("int8-channel-127",),
}
"""Schemes whose arithmetic the software that opens the format expects."""

_PACKED: Final = 4  # int8 values in an int32


class PlanError(ValueError):
    """This checkpoint can't be quantised in that way; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A tensor of a new file."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        size = itemsize(self.dtype)
        for length in self.shape:
            size *= length
        return size


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A tensor of the source and what is stored for it: itself, or if `quantised` its values first
    and then what belongs to them."""

    source: TensorSpec
    quantised: bool
    stored: tuple[Stored, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A new weight file, made of one file of the source."""

    name: str
    source: str
    steps: tuple[Step, ...]

    @property
    def nbytes(self) -> int:
        return sum(stored.nbytes for step in self.steps for stored in step.stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The new checkpoint. `ignored` are the modules with a 2-D weight that stay as they are."""

    format: Format
    scheme: Scheme
    shards: tuple[Shard, ...]
    ignored: tuple[str, ...]
    index_name: str

    @property
    def nbytes(self) -> int:
        return sum(shard.nbytes for shard in self.shards)

    @property
    def quantised(self) -> int:
        return sum(step.quantised for shard in self.shards for step in shard.steps)


def plan(
    checkpoint: Checkpoint, *, format: Format, scheme_name: str | None, ignore: Sequence[str] = ()
) -> Plan:
    """What to write for `checkpoint`. `ignore` has names of modules, or `re:` and an expression;
    they count for what a module is fused into as well.

    PlanError if the format has no such scheme, if the source is no safetensors checkpoint, is
    quantised already, has stacked experts (3-D), or nothing to quantise, and if only some parts of
    what an engine fuses would be quantised; modules.PatternError for a bad expression.
    """
    name = scheme_name or DEFAULT[format]
    if name not in WRITABLE[format]:
        raise PlanError(
            f"the format {format} isn't written with the scheme {name!r}; it is with: "
            f"{', '.join(WRITABLE[format])}"
        )
    chosen = scheme(name)
    _refuse(checkpoint)
    _refuse_idle(checkpoint, ignore)
    wanted = {tensor.name for tensor in checkpoint.tensors if _wanted(tensor, format, ignore)}
    if not wanted:
        raise PlanError(f"{shown(checkpoint.origin)}: nothing to quantise is left in it")
    _refuse_partly_fused(checkpoint, wanted)
    _refuse_clashes(checkpoint, wanted)
    names = _file_names(checkpoint, format)
    shards = tuple(
        Shard(
            name=names[file.name],
            source=file.name,
            steps=tuple(
                _step(tensor, tensor.name in wanted, chosen, format)
                for tensor in checkpoint.tensors_of(file.name)
            ),
        )
        for file in checkpoint.files
    )
    stem = "model" if format == "compressed-tensors" else "quant_model_weights"
    return Plan(
        format=format,
        scheme=chosen,
        shards=shards,
        ignored=_ignored(checkpoint, wanted),
        index_name=f"{stem}.safetensors.index.json",
    )


def _refuse(checkpoint: Checkpoint) -> None:
    origin = shown(checkpoint.origin)
    if checkpoint.format != "safetensors":
        raise PlanError(f"{origin}: only safetensors are quantised, this is {checkpoint.format}")
    if (Path(checkpoint.root) / DESCRIPTION).is_file():
        raise PlanError(f"{origin}: it is quantised already, as {DESCRIPTION} in it says")
    if checkpoint.config is None:
        raise PlanError(f"{origin}: there is no config.json, and engines need one")
    given = checkpoint.config.get("quantization_config")
    if given:
        method = given.get("quant_method") if isinstance(given, dict) else given
        raise PlanError(f"{origin}: it is quantised already ({shown(method)}, in config.json)")
    stacked = [
        tensor.name
        for tensor in checkpoint.tensors
        if len(tensor.shape) == 3 and ".experts." in f".{tensor.name}."
    ]
    if stacked:
        raise PlanError(
            f"{origin}: experts stacked into one tensor can't be quantised in these formats, which "
            f"have one for each: {listed(stacked)}"
        )
    eight = [tensor.name for tensor in checkpoint.tensors if _looks_quantised(tensor)]
    if eight:
        raise PlanError(f"{origin}: it is quantised already: {listed(eight)}")


def _refuse_idle(checkpoint: Checkpoint, ignore: Sequence[str]) -> None:
    """An entry that means nothing is one that was meant to mean something. lm_head may be tied."""
    modules = {"lm_head", *(module_of(tensor.name) for tensor in checkpoint.tensors)}
    for entry in ignore:
        if not any(matches(module, [entry]) for module in modules):
            raise PlanError(
                f"--ignore {quoted(entry)}: means no module of {shown(checkpoint.origin)}; give "
                "the whole name of one, or re: and an expression that names begin with"
            )


def _looks_quantised(tensor: TensorSpec) -> bool:
    leaf = tensor.name.rpartition(".")[2]
    return (
        leaf in ("weight", "weight_packed")
        and len(tensor.shape) == 2
        and (tensor.dtype == "int8" or tensor.dtype.startswith("float8") or leaf == "weight_packed")
    )


def _wanted(tensor: TensorSpec, format: Format, ignore: Sequence[str]) -> bool:
    module = module_of(tensor.name)
    if not _linear(tensor) or left_alone(module) is not None:
        return False
    # msModelSlim leaves it, because Ascend's attention multiplies it into others in float.
    if format == "ascend" and module.endswith(".kv_b_proj"):
        return False
    return not matches(module, ignore)


def _linear(tensor: TensorSpec) -> bool:
    return (
        tensor.name.endswith(".weight")
        and len(tensor.shape) == 2
        and tensor.dtype in WEIGHT_DTYPES
        and tensor.nbytes > 0
    )


def _refuse_partly_fused(checkpoint: Checkpoint, wanted: set[str]) -> None:
    states = {
        module_of(tensor.name): "quantised" if tensor.name in wanted else "ignored"
        for tensor in checkpoint.tensors
        if _linear(tensor) and left_alone(module_of(tensor.name)) is None
    }
    for group, parts in disagreements(states).items():
        raise PlanError(
            f"{quoted(group)} is one module in an engine, whose parts are quantised or ignored "
            f"together; here quantised are {listed(sorted(parts['quantised']))}; ignored are "
            f"{listed(sorted(parts['ignored']))}"
        )


def _refuse_clashes(checkpoint: Checkpoint, wanted: set[str]) -> None:
    names = {tensor.name for tensor in checkpoint.tensors}
    clashes = [f"{name}_scale" for name in wanted if f"{name}_scale" in names]
    if clashes:
        raise PlanError(f"scales of that name are there already: {listed(sorted(clashes))}")


def _ignored(checkpoint: Checkpoint, wanted: set[str]) -> tuple[str, ...]:
    """lm_head stands there also where the file leaves it out because it is tied: the model has that
    layer all the same."""
    left = {
        module_of(tensor.name): None
        for tensor in checkpoint.tensors
        if tensor.name.endswith(".weight")
        and len(tensor.shape) == 2
        and tensor.name not in wanted
        and left_alone(module_of(tensor.name)) != "an embedding"
    }
    return tuple({**left, "lm_head": None})


def _file_names(checkpoint: Checkpoint, format: Format) -> dict[str, str]:
    """New names of the weight files, by old ones: the same, or those of msModelSlim. One file alone
    has the name that needs no index; its own may be that of a shard of several."""
    files = [file.name for file in checkpoint.files]
    if format == "compressed-tensors":
        if len(files) == 1:
            return {files[0]: "model.safetensors"}
        return {name: name for name in files}
    total = len(files)
    return {
        name: f"quant_model_weights-{number:05d}-of-{total:05d}.safetensors"
        for number, name in enumerate(files, 1)
    }


def _step(tensor: TensorSpec, quantised: bool, scheme: Scheme, format: Format) -> Step:
    if not quantised:
        same = Stored(name=tensor.name, dtype=tensor.dtype, shape=tensor.shape)
        return Step(source=tensor, quantised=False, stored=(same,))
    name, (rows, columns) = tensor.name, tensor.shape
    scale = Stored(
        name=f"{name}_scale",
        dtype=scale_dtype(scheme, tensor.dtype),
        shape=scale_shape((rows, columns), scheme.granularity),
    )
    values = Stored(name=name, dtype=scheme.rule.stored, shape=(rows, columns))
    more: tuple[Stored, ...] = ()
    if format == "ascend":
        more = (Stored(name=f"{name}_offset", dtype="float32", shape=(rows, 1)),)
    elif scheme.activations == "none":
        packed = -(-columns // _PACKED)
        values = Stored(name=f"{name}_packed", dtype="int32", shape=(rows, packed))
        more = (Stored(name=f"{name}_shape", dtype="int64", shape=(2,)),)
    return Step(source=tensor, quantised=True, stored=(values, scale, *more))
