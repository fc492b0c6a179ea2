"""The rank's parameters from a snapshot: nothing is left to be done but reading."""

from __future__ import annotations

from loaders.assembly.overlapped import overlapped
from loaders.assembly.values import Assembled, Options
from loaders.checkpoint.manifest import Checkpoint, TensorSpec
from loaders.device.interface import Device
from loaders.slicing.plan import Parameter, Piece


def restored(checkpoint: Checkpoint, device: Device, options: Options) -> Assembled:
    """A parameter for each tensor of a snapshot, in its order, read as `overlapped` reads those of
    a checkpoint; errors as there."""
    return overlapped(checkpoint, [_whole(spec) for spec in checkpoint.tensors], device, options)


def _whole(spec: TensorSpec) -> Parameter:
    piece = Piece(
        tensor=spec.name,
        dim=0,
        start=0,
        stop=spec.shape[0] if spec.shape else 1,
        shape=spec.shape,
        at=(0,) * len(spec.shape),
        replicas=1,
    )
    return Parameter(
        name=spec.name,
        kind="kept",
        dtype=spec.dtype,
        shape=spec.shape,
        pieces=(piece,) if spec.nbytes else (),
    )
