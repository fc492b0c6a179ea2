"""What every rank of a run is told in the beginning, and what each of its parameters must hold."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import xxhash

from bench.phases.tensors import load
from loaders.checkpoint.dtypes import itemsize, torch_dtype
from loaders.checkpoint.manifest import Checkpoint
from loaders.slicing.build import plan_rank
from loaders.slicing.execute import cut_stock
from loaders.slicing.model import model_of
from loaders.slicing.plan import Degrees, Parameter

Way = Literal["read-all", "read-slices", "scatter", "prefetch"]
WAYS: tuple[Way, ...] = get_args(Way)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """`world` ranks divide the model by tensor parallelism (experts whole with `ep`). `kind` is the
    device's ("cpu", "cuda", "npu"), one for each rank of a node; `threads` are a rank's own,
    `touch_bytes` what each touches and frees before a sample, `timeout` seconds for a sample."""

    checkpoint: Checkpoint
    world: int
    ep: bool
    kind: str
    threads: int
    touch_bytes: int
    timeout: float
    course: str = ""

    @property
    def degrees(self) -> Degrees:
        return Degrees(tp=self.world, ep=self.world if self.ep else 1)

    @property
    def layout(self) -> str:
        return f"tp{self.world}" + ("-ep" if self.ep else "")

    def parameters(self, ranks: Iterable[int]) -> list[list[Parameter]]:
        """What those ranks keep. PlanError where the model can't be divided so."""
        model = model_of(self.checkpoint)
        return [list(plan_rank(model, self.degrees, rank).parameters) for rank in ranks]

    def fingerprint(self) -> str:
        """What must be the same on every node, or ranks would wait for each other for ever."""
        files = [(file.name, file.size) for file in self.checkpoint.files]
        specs = [(spec.name, spec.shape, spec.offset) for spec in self.checkpoint.tensors]
        text = json.dumps([files, specs, self.world, self.ep, self.kind, self.course])
        return xxhash.xxh3_64_hexdigest(text.encode())


def digest(tensor: torch.Tensor) -> str:
    """Of a contiguous tensor's bytes, on the host or on a device."""
    raw = tensor.detach().reshape(-1).view(torch.uint8).cpu().numpy()
    return xxhash.xxh3_64_hexdigest(raw.data)


def expected_digests(
    checkpoint: Checkpoint, plans: Sequence[Sequence[Parameter]]
) -> list[dict[str, str]]:
    """For each plan parameter -> digest, made by narrow and copy from plain reads, each tensor read
    once for all ranks: nothing of it is shared with a timed way but the plan."""
    specs = {spec.name: spec for spec in checkpoint.tensors}
    by_name: dict[str, list[tuple[int, Parameter]]] = {}
    for number, plan in enumerate(plans):
        for parameter in plan:
            by_name.setdefault(parameter.name, []).append((number, parameter))
    found: list[dict[str, str]] = [{} for _ in plans]
    for name, members in by_name.items():
        wanted = dict.fromkeys(piece.tensor for _, one in members for piece in one.pieces)
        sources = load(checkpoint, [specs[tensor] for tensor in wanted])
        for number, parameter in members:
            target = torch.zeros(parameter.shape, dtype=torch_dtype(parameter.dtype))
            cut_stock(sources, [parameter], [target])
            found[number][name] = digest(target)
    return found


def distinct_bytes(plans: Iterable[Sequence[Parameter]]) -> int:
    """Bytes of the files that these ranks keep, what several of them keep counted once."""
    blocks = {
        (piece.tensor, piece.dim, piece.start, piece.stop): piece.elements
        * itemsize(parameter.dtype)
        for plan in plans
        for parameter in plan
        for piece in parameter.pieces
    }
    return sum(blocks.values())
