"""What a rank's quantised parameters must be: in plain torch, from the files, read once more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from bench.measuring.verify import SHOWN
from bench.phases.tensors import differing, load
from loaders.checkpoint.dtypes import torch_dtype
from loaders.checkpoint.manifest import Checkpoint
from loaders.quantise import reference
from loaders.quantise.schemes import Scheme, scale_dtype
from loaders.slicing.execute import cut_stock
from loaders.slicing.plan import Parameter, Piece
from loaders.w8a8.plan import Shares, is_quantised
from loaders.w8a8.ways import State, Way, laid_out_stack

Expected = Iterator[tuple[str, torch.Tensor]]


def unlike_cuts(
    checkpoint: Checkpoint, parameters: Sequence[Parameter], state: State, way: Way
) -> list[str]:
    """Parameters of a quantised checkpoint that aren't what narrow and copy make of its files."""
    return _faults(state, _cuts(checkpoint, parameters, way), len(parameters))


def unlike_definition(
    checkpoint: Checkpoint, shares: Shares, state: State, scheme: Scheme, way: Way
) -> list[str]:
    """Parameters that aren't what quantising the full weights by definition and cutting them after
    that makes of the files."""
    quantised = (*shares.by_rows, *shares.within_rows)

    def expected() -> Expected:
        yield from _cuts(checkpoint, shares.plain, way)
        for parameter in quantised:
            yield from _quantised(checkpoint, parameter, scheme, way)

    return _faults(state, expected(), len(shares.plain) + 2 * len(quantised))


def _faults(state: State, expected: Expected, count: int) -> list[str]:
    faults: list[str] = []
    if len(state) != count:
        faults.append(f"{count} parameters expected, {len(state)} found")
    for name, right in expected:
        if name not in state:
            faults.append(f"{name}: it isn't there")
        else:
            faults += differing([(name, state[name].cpu())], {name: right.cpu()})
        if len(faults) >= SHOWN:
            break
    return faults


def _cuts(checkpoint: Checkpoint, parameters: Sequence[Parameter], way: Way) -> Expected:
    for parameter in parameters:
        target = torch.zeros(parameter.shape, dtype=torch_dtype(parameter.dtype))
        cut_stock(_sources(checkpoint, parameter), [parameter], [target])
        yield parameter.name, laid_out_stack(target, way) if is_quantised(parameter) else target


def _sources(checkpoint: Checkpoint, parameter: Parameter) -> dict[str, torch.Tensor]:
    names = {piece.tensor for piece in parameter.pieces}
    return load(checkpoint, [spec for spec in checkpoint.tensors if spec.name in names])


def _quantised(checkpoint: Checkpoint, parameter: Parameter, scheme: Scheme, way: Way) -> Expected:
    values = torch.zeros(parameter.shape, dtype=torch.int8)
    kind = torch_dtype(scale_dtype(scheme, parameter.dtype))
    scales = torch.zeros((*parameter.shape[:-1], 1), dtype=kind)
    for name, full in _sources(checkpoint, parameter).items():
        for piece in parameter.pieces:
            if piece.tensor != name:
                continue
            # rows that are kept whole can be quantised without the others
            kept = full.narrow(0, piece.start, piece.shape[0]) if piece.dim == 0 else full
            done = reference.quantise(kept, scheme, name=name)
            _place(values, done.values, piece, parameter)
            window = piece.window(parameter)[:-1]
            scales[window] = done.scale.reshape(scales[window].shape)
    yield parameter.name, laid_out_stack(values, way)
    yield f"{parameter.name}_scale", scales


def _place(into: torch.Tensor, full: torch.Tensor, piece: Piece, parameter: Parameter) -> None:
    block = full if piece.dim == 0 else full.narrow(piece.dim, piece.start, piece.shape[piece.dim])
    target = into[piece.window(parameter)]
    target.copy_(block.reshape(target.shape))
