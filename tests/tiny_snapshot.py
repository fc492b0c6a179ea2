"""Small models and snapshots of them, made without compiling anything."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from tiny_synth import make, quiet

from bench.phases.tensors import load
from bench.snapshot.make import Request, Snapshot, make_snapshot
from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.read import open_checkpoint
from loaders.io.tensors import dtype_of
from loaders.slicing.build import plan_rank
from loaders.slicing.execute import cut_stock
from loaders.slicing.model import model_of
from loaders.slicing.plan import Degrees
from loaders.snapshot.digests import source_of
from loaders.snapshot.format import Header, Layout, Made, file_name
from loaders.snapshot.state import Kept
from loaders.snapshot.write import outlined, write


def model(folder: Path, shape: str = "qwen3-0.6b", **how: object) -> Checkpoint:
    make(folder, shape=shape, **how)  # type: ignore[arg-type]
    return open_checkpoint(folder)


def snapshot(source: Checkpoint, dest: Path, tp: int = 1, **how: object) -> Snapshot:
    """`how` is what a Request holds besides tp; also `pp`, `ep` and `batch_bytes`."""
    degrees = Degrees(tp=tp, pp=how.pop("pp", 1), ep=how.pop("ep", 1))  # type: ignore[arg-type]
    batch = how.pop("batch_bytes", 256 << 20)
    request = Request(degrees=degrees, **how)  # type: ignore[arg-type]
    return make_snapshot(
        source, dest, request, name="tiny", progress=quiet, compiled=False, batch_bytes=batch
    )


def write_plain(source: Checkpoint, tensors: Mapping[str, torch.Tensor], folder: Path) -> None:
    """A snapshot of these very tensors, whatever they are: no engine would name them so."""
    header = Header(
        layout=Layout(),
        processing="pre",
        device_layout="plain",
        quantisation=None,
        source=source_of(source, "plain", {}),
        made=Made(coldload="0", torch="0", seconds=0.0),
    )
    pairs = [
        (Kept(name=spec.name, dtype=spec.dtype, shape=spec.shape), tensors[spec.name])
        for spec in source.tensors
    ]
    outline, first = outlined(header, [kept for kept, _ in pairs])
    path = folder / file_name(header.layout)
    write(path, outline, first, pairs, threads=1, on_bytes=lambda nbytes: None)


def assembled(source: Checkpoint, degrees: Degrees, rank: int) -> dict[str, torch.Tensor]:
    """The rank's parameters as narrow and copy make them."""
    parameters = plan_rank(model_of(source), degrees, rank).parameters
    tensors = load(source, source.tensors)
    targets = [torch.empty(one.shape, dtype=torch.bfloat16) for one in parameters]
    for number, one in enumerate(parameters):
        spec = next(s for s in source.tensors if s.name == one.pieces[0].tensor)
        targets[number] = torch.empty(one.shape, dtype=dtype_of(spec))
    cut_stock(tensors, parameters, targets)
    return {one.name: target for one, target in zip(parameters, targets, strict=True)}


def held(path: Path) -> dict[str, torch.Tensor]:
    """What a snapshot's file holds, read by plain reads at its manifest's offsets."""
    checkpoint = open_checkpoint(path)
    return load(checkpoint, checkpoint.tensors)


def same(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> bool:
    def raw(tensor: torch.Tensor) -> bytes:
        return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""

    return found.keys() == expected.keys() and all(
        found[name].dtype == tensor.dtype
        and found[name].shape == tensor.shape
        and raw(found[name]) == raw(tensor)
        for name, tensor in expected.items()
    )


def flip(path: Path, at: int) -> None:
    """Changes one bit of the byte at that offset; once more, and it is as it was."""
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 4]))
