"""What phases on quantised weights have in common: which weights, and a quantiser made ready."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from bench.phases.tensors import load, pick
from bench.quantize.plan import PlanError, plan
from loaders.checkpoint.manifest import Checkpoint, TensorSpec
from loaders.quantise.fast import Output, Quantiser, allocate
from loaders.quantise.schemes import Scheme

ENOUGH = 128 << 20
"""Bytes of weights that are quantised in a sample: the plain way, the proof and what was lost take
a second for as many."""


def preload_compiler() -> None:
    """Imports torch's compiler in the fork server, where it takes its seconds once and not in every
    child. Its pool of processes isn't wanted: their parent's threads wouldn't survive the fork."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    for module in ("torch._dynamo", "torch._inductor.compile_fx"):
        importlib.import_module(module)


def quantised_names(checkpoint: Checkpoint) -> frozenset[str]:
    """The tensors that are quantised where the field's tools do it. quantize.plan.PlanError."""
    made = plan(checkpoint, format="compressed-tensors", scheme_name="int8-channel")
    return frozenset(
        step.source.name for shard in made.shards for step in shard.steps if step.quantised
    )


def no_weights(checkpoint: Checkpoint) -> str | None:
    """Why nothing of it can be quantised, or None."""
    try:
        quantised_names(checkpoint)
    except PlanError as error:
        return str(error)
    return None


def weights_of(checkpoint: Checkpoint, limit: int = ENOUGH) -> list[TensorSpec]:
    """The real mix of weights, about `limit` bytes of them and one at least: the first layers',
    each kind in its place. PlanError."""
    names = quantised_names(checkpoint)
    found: list[TensorSpec] = []
    total = 0
    for spec in (one for one in pick(checkpoint, limit) if one.name in names):
        total += spec.nbytes
        if found and total > limit:
            break
        found.append(spec)
    return found or [next(one for one in checkpoint.tensors if one.name in names)]


def resident(checkpoint: Checkpoint, device: torch.device) -> dict[str, torch.Tensor]:
    """`weights_of` in the device's memory."""
    found = load(checkpoint, weights_of(checkpoint))
    return {name: tensor.to(device) for name, tensor in found.items()}


def outputs(weights: Mapping[str, torch.Tensor], scheme: Scheme) -> dict[str, Output]:
    """Touched memory for the values and scales of each, where the weights lie."""
    found = {}
    for name, weight in weights.items():
        made = allocate(tuple(weight.shape), weight.dtype, scheme)
        values, scale = (torch.zeros_like(one, device=weight.device) for one in _parts(made))
        found[name] = Output(values=values, scale=scale)
    return found


def _parts(made: Output) -> tuple[torch.Tensor, torch.Tensor]:
    return made.values, made.scale


def quantisers(
    dtypes: Sequence[torch.dtype], scheme: Scheme, device: torch.device, *, compiled: bool = True
) -> dict[torch.dtype, Quantiser]:
    """One for each dtype; this is where compiling takes its time, before any clock starts."""
    return {
        dtype: Quantiser(scheme, dtype, device=device, compiled=compiled)
        for dtype in dict.fromkeys(dtypes)
    }


def compiling(made: Mapping[torch.dtype, Quantiser]) -> dict[str, Any]:
    """For the record: how they work, why not compiled, and the seconds that compiling took, which
    are in no other stamp."""
    every = list(made.values())
    return {
        "how": ", ".join(sorted({one.how for one in every})),
        "not_compiled": next((one.reason for one in every if one.reason), None),
        "compile_seconds": sum(one.compile_seconds for one in every),
    }
