"""A tiny checkpoint and its quantised copy, and both ways run in this process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from bench.quantize.plan import plan
from bench.quantize.write import write_quantised
from bench.synth.write import make_checkpoint
from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.read import open_checkpoint
from loaders.device.discover import open_device
from loaders.quantise.fast import Quantiser
from loaders.quantise.schemes import scheme
from loaders.slicing.build import plan_rank
from loaders.slicing.model import model_of
from loaders.slicing.plan import Degrees
from loaders.w8a8.plan import shares_of
from loaders.w8a8.ways import Loaded, Way, offline, online

Pair = tuple[Checkpoint, Checkpoint]


def both(folder: Path, shape: str = "llama-3.1-8b", size: int = 4 << 20) -> Pair:
    """A made-up checkpoint and the same one in int8."""
    make_checkpoint(
        shape,
        folder / "bf16",
        size=size,
        shards=2,
        format="safetensors",
        dtype=None,
        seed=3,
        progress=lambda done, total: None,
    )
    source = open_checkpoint(str(folder / "bf16"))
    return source, quantised(source, folder / "int8")


def quantised(source: Checkpoint, dest: Path) -> Checkpoint:
    planned = plan(source, format="compressed-tensors", scheme_name="int8-channel")
    write_quantised(source, planned, dest, progress=lambda done, total: None, compiled=False)
    return open_checkpoint(str(dest))


def way(layout: Any = "nz") -> Way:
    return Way(device=open_device("cpu"), layout=layout, cores=2, readers=2)


def names_of(source: Checkpoint) -> frozenset[str]:
    planned = plan(source, format="compressed-tensors", scheme_name="int8-channel")
    steps = [step for shard in planned.shards for step in shard.steps]
    return frozenset(step.source.name for step in steps if step.quantised)


def run_online(source: Checkpoint, degrees: Degrees, rank: int, how: Way) -> Loaded:
    parameters = plan_rank(model_of(source), degrees, rank).parameters
    specs = {spec.name: spec for spec in source.tensors}
    shares = shares_of(parameters, specs, names_of(source))
    chosen = scheme("int8-channel")
    made: Mapping[torch.dtype, Quantiser] = {
        dtype: Quantiser(chosen, dtype, compiled=False)
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
    }
    return online(source, shares, made, how, lambda stage: nullcontext())


def run_offline(source: Checkpoint, degrees: Degrees, rank: int, how: Way) -> Loaded:
    parameters = plan_rank(model_of(source), degrees, rank).parameters
    return offline(source, parameters, how, lambda stage: nullcontext())
