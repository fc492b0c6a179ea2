"""As the engine does it: tensor after tensor out of a lazy mapping, narrowed and copied to its
place in the parameter on the device. Disk and link take turns, page by page."""

from __future__ import annotations

from collections.abc import Sequence

from loaders.assembly.values import Assembled, Options, targets_on
from loaders.checkpoint.manifest import Checkpoint
from loaders.device.interface import Device
from loaders.slicing.execute import raw, zero_padding
from loaders.slicing.plan import Parameter, Piece
from loaders.transfer.mapping import mapped_tensors


def stock(
    checkpoint: Checkpoint, parameters: Sequence[Parameter], device: Device, options: Options
) -> Assembled:
    """vLLM 0.33: default_loader's iterator, then each layer's weight_loader (narrow, copy_). On the
    host it is what the engine's CPU build does, too; there are no stages to tell apart.
    DeviceError, LoadError, OSError."""
    with options.stamp("allocate"):
        targets = targets_on(device, parameters)
    wanted: dict[str, list[tuple[int, Piece]]] = {}
    for number, parameter in enumerate(parameters):
        for piece in parameter.pieces:
            wanted.setdefault(piece.tensor, []).append((number, piece))
    copies = 0
    with mapped_tensors(checkpoint) as mapped:
        for name, tensor in mapped:
            for number, piece in wanted.get(name, ()):
                source = tensor
                if source.dim():
                    source = source.narrow(piece.dim, piece.start, piece.stop - piece.start)
                place = targets[number][piece.window(parameters[number])]
                device.copy_(place, source.reshape(place.shape))
                copies += 1
            del tensor
        device.synchronize()
    if device.kind == "cpu":
        zero_padding(parameters, [raw(target) for target in targets])
    return Assembled(targets=targets, copies=copies)
