"""One rank's part of a matrix that GPTQ or AWQ packed: transposed, several elements in one int32.

    tensor    GPTQ                  AWQ                   elements of the matrix in one of its own
    qweight   [in / pack, out]      [in, out / pack]      pack = 32 // bits
    scales    [groups, out]         [groups, out]         group_size of `in`
    qzeros    [groups, out / pack]  [groups, out / pack]
    g_idx     [in]                  -                     the group of each input

Source: vLLM 0.33, layers/quantization/gptq.py, gptq_marlin.py and awq.py. A matrix that is cut by
its inputs keeps scales and zeros whole where GPTQ's desc_act let any input be of any group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from loaders.checkpoint.text import quoted, shown
from loaders.slicing.block import Block
from loaders.slicing.config import Quantisation
from loaders.slicing.errors import ConfigError, IndivisibleError, PlanError
from loaders.slicing.model import Named

OUT, IN = 0, 1  # the dimensions of the matrix itself
_METHODS: Final = {"gptq": "gptq", "gptq_marlin": "gptq", "awq": "awq", "awq_marlin": "awq"}
_Axes = Mapping[int, tuple[int, int]]
"""Dimension of the matrix -> that of the tensor, and how many elements share one of its own."""


def matrix_shape(tensor: Named, quantisation: Quantisation | None) -> tuple[int, int]:
    """[out, in] of the matrix that was packed into the tensor's qweight. ConfigError where
    config.json doesn't say how, PlanError for a qweight that isn't a matrix."""
    method, pack = _packing(tensor, quantisation)
    shape = tensor.weight.shape
    if len(shape) != 2:
        raise PlanError(f"{shown(tensor.weight.name)}: expected 2 dimensions, found {list(shape)}")
    rows, columns = shape
    return (columns, rows * pack) if method == "gptq" else (columns * pack, rows)


def packed_block(cut: Block, tensor: Named, quantisation: Quantisation | None) -> Block | None:
    """The block of one of the matrix's tensors that goes with a block of the matrix; None where
    every rank keeps all of it. PlanError for a shape that isn't the matrix's."""
    assert quantisation is not None  # matrix_shape() has refused
    matrix = matrix_shape(tensor, quantisation)
    axes = _axes(tensor, quantisation, matrix)
    spec = tensor.spec
    for of, (dim, step) in axes.items():
        expected = -(-matrix[of] // step)
        if dim >= len(spec.shape) or spec.shape[dim] != expected:
            raise PlanError(
                f"{shown(spec.name)}: shape {list(spec.shape)} doesn't follow that of its matrix, "
                f"{list(matrix)} in {shown(tensor.weight.name)}: expected {expected} in dimension "
                f"{dim} ({quantisation.method}, bits {quantisation.bits}, group_size "
                f"{quantisation.group or 'none'})"
            )
    if cut.dim not in axes:
        return None
    dim, step = axes[cut.dim]
    one_group = quantisation.group is None or quantisation.by_activation
    if cut.dim == IN and tensor.attribute in ("scales", "qzeros") and one_group:
        return None
    if cut.start % step or (cut.stop % step and cut.stop != matrix[cut.dim]):
        raise IndivisibleError(
            f"{shown(spec.name)}: one rank's share of the matrix, {cut.stop - cut.start} of "
            f"{matrix[cut.dim]}, isn't divisible by the {step} elements that one of its own stands "
            "for; engines refuse it too"
        )
    start, stop = cut.start // step, -(-cut.stop // step)
    shape = (*spec.shape[:dim], stop - start, *spec.shape[dim + 1 :])
    allocated = None if cut.allocated is None else -(-cut.allocated // step)
    return replace(cut, dim=dim, start=start, stop=stop, shape=shape, allocated=allocated)


def elements_each(tensor: Named, quantisation: Quantisation | None) -> int:
    """How many elements of the matrix one of its weight's stands for: 1 where nothing is packed."""
    return _packing(tensor, quantisation)[1] if tensor.packed else 1


def _packing(tensor: Named, quantisation: Quantisation | None) -> tuple[str, int]:
    name = shown(tensor.weight.name)
    method = None if quantisation is None else _METHODS.get(quantisation.method)
    if method is None or quantisation is None:
        found = "none" if quantisation is None else quoted(quantisation.method)
        raise ConfigError(
            f"{name}: how it is packed stands in config.json's quantization_config: expected "
            f"quant_method gptq or awq, found {found}"
        )
    bits = quantisation.bits
    if bits is None or 32 % bits:
        raise ConfigError(
            f"{name}: config.json's quantization_config: bits: expected 2, 4 or 8 (so many "
            f"elements fill an int32), found {bits}"
        )
    return method, 32 // bits


def _axes(tensor: Named, quantisation: Quantisation, matrix: tuple[int, int]) -> _Axes:
    method, pack = _packing(tensor, quantisation)
    group = quantisation.group or matrix[IN]
    if tensor.attribute == "qweight":
        return {IN: (0, pack), OUT: (1, 1)} if method == "gptq" else {IN: (0, 1), OUT: (1, pack)}
    return {
        "scales": {IN: (0, group), OUT: (1, 1)},
        "qzeros": {IN: (0, group), OUT: (1, pack)},
        "g_idx": {IN: (0, 1)},
        "bias": {OUT: (0, 1)},
    }.get(tensor.attribute, {})
