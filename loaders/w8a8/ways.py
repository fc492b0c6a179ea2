"""The two ways to the same state, stage after stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from loaders.checkpoint.dtypes import torch_dtype
from loaders.checkpoint.manifest import Checkpoint
from loaders.device.interface import Device
from loaders.quantise.fast import Output, Quantiser
from loaders.quantise.layout import Name, laid_out, out_shape
from loaders.quantise.schemes import scale_dtype
from loaders.slicing.plan import Parameter
from loaders.w8a8.fill import Stamp, fill, fill_within_rows, fresh, wide
from loaders.w8a8.plan import Shares, is_quantised
from loaders.w8a8.windows import Windows

State = dict[str, torch.Tensor]
"""A rank's parameters by name: int8 weights laid out for the device ([out, in] -> its layout, of
stacked experts each for itself), `<weight>_scale` [out, 1] beside them, all others as sliced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What both ways need: where the parameters go and how, and the cores and readers to use."""

    device: Device
    layout: Name
    cores: int
    readers: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loaded:
    """`fetched`: bytes that the files were asked for; `notes`: path -> what is to be told of its
    reading."""

    state: State
    fetched: int
    notes: Mapping[str, list[str]]


def offline(
    checkpoint: Checkpoint, parameters: Sequence[Parameter], way: Way, stamp: Stamp
) -> Loaded:
    """A quantised checkpoint -> read -> slice -> (transfer) -> layout."""
    state: State = {}
    with Windows(threads=way.readers) as windows:
        targets = _allocated(parameters, stamp)
        fill(windows, checkpoint, parameters, targets, stamp, threads=way.cores)
        for parameter in parameters:
            there = _moved(targets.pop(0), way, stamp)
            if is_quantised(parameter):
                there = _laid_out(there, way, stamp)
            state[parameter.name] = there
    return Loaded(state=state, fetched=windows.nbytes, notes=windows.notes)


def online(
    checkpoint: Checkpoint,
    shares: Shares,
    quantisers: Mapping[torch.dtype, Quantiser],
    way: Way,
    stamp: Stamp,
) -> Loaded:
    """A checkpoint that isn't quantised -> read -> slice -> (transfer) -> quantise -> layout, to
    the state that `offline` comes to. The quantisers are per channel, one for each dtype."""
    state: State = {}
    with Windows(threads=way.readers) as windows:
        parameters = [*shares.plain, *shares.by_rows]
        targets = _allocated(parameters, stamp)
        fill(windows, checkpoint, parameters, targets, stamp, threads=way.cores)
        for parameter in shares.plain:
            state[parameter.name] = _moved(targets.pop(0), way, stamp)
        for parameter in shares.by_rows:
            rows = targets.pop(0).view(-1, parameter.shape[-1])
            _quantise(parameter, rows, quantisers, way, stamp, state)
        for parameter in shares.within_rows:
            with stamp("allocate"):
                rows = fresh(wide(parameter), torch_dtype(parameter.dtype))
            fill_within_rows(windows, checkpoint, parameter, rows, stamp)
            _quantise(parameter, rows, quantisers, way, stamp, state)
    return Loaded(state=state, fetched=windows.nbytes, notes=windows.notes)


def _allocated(parameters: Sequence[Parameter], stamp: Stamp) -> list[torch.Tensor]:
    with stamp("allocate"):
        return [fresh(one.shape, torch_dtype(one.dtype)) for one in parameters]


def _moved(tensor: torch.Tensor, way: Way, stamp: Stamp) -> torch.Tensor:
    if way.device.kind == "cpu":
        return tensor
    with stamp("transfer"):
        moved = tensor.to(way.device.torch_device)
        way.device.synchronize()
        return moved


def _quantise(
    parameter: Parameter,
    rows: torch.Tensor,
    quantisers: Mapping[torch.dtype, Quantiser],
    way: Way,
    stamp: Stamp,
    state: State,
) -> None:
    """`rows` [out, in], or with one more column (`fill.wide`), -> the state's values and scales."""
    rows = _moved(rows, way, stamp)
    quantiser = quantisers[rows.dtype]
    kind = scale_dtype(quantiser.scheme, str(rows.dtype).removeprefix("torch."))
    with stamp("allocate"):
        out = Output(
            values=_memory(rows.shape, torch.int8, way),
            scale=_memory((len(rows), 1), torch_dtype(kind), way),
        )
    with stamp("quantise"):
        quantiser(rows, out, name=parameter.name)
        way.device.synchronize()
    *lead, columns = parameter.shape
    values = out.values.view(*lead, rows.shape[1])[..., :columns]
    state[parameter.name] = _laid_out(values, way, stamp)
    state[f"{parameter.name}_scale"] = out.scale.view(*lead, 1)


def _memory(shape: Sequence[int], dtype: torch.dtype, way: Way) -> torch.Tensor:
    if way.device.kind == "cpu":
        return fresh(shape, dtype)
    return torch.empty(tuple(shape), dtype=dtype, device=way.device.torch_device)


def _laid_out(values: torch.Tensor, way: Way, stamp: Stamp) -> torch.Tensor:
    with stamp("layout"):
        return laid_out_stack(values, way)


def laid_out_stack(values: torch.Tensor, way: Way) -> torch.Tensor:
    """int8 [out, in], or [experts, out, in] each for itself, in the way's layout. On an NPU in
    FRACTAL_NZ one matrix alone: the cast takes no stack."""
    if way.layout == "view":
        return values.mT
    if way.layout == "nz" and way.device.kind == "npu":  # the cast makes memory of its own
        done = laid_out(values, way.layout)
    else:
        stack = values if values.ndim == 3 else values.unsqueeze(0)
        shape = out_shape(tuple(stack.shape[1:]), way.layout)
        made = _memory((len(stack), *shape), values.dtype, way)
        for one, into in zip(stack, made, strict=True):
            laid_out(one, way.layout, into)
        done = made if values.ndim == 3 else made[0]
    way.device.synchronize()
    return done
