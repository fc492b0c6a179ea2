"""Quantising at the speed of memory: one pass, all cores, into memory that is there already.

Equal to loaders/quantise/reference.py bit for bit. Two ways, chosen once when a `Quantiser` is
made: kernels of torch.compile, or, where nothing can be compiled, plain torch on bands of rows that
stay in the cores' caches. Per tensor and per block a weight is read twice: its values need scales
that are known only when everything under them was seen.

Weights with scales too small for a normal number (below 1e-38 in bfloat16 and float32, 6e-5 in
float16) are done by the reference: there, compiled code and plain torch may flush to zero.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch

from loaders.checkpoint.dtypes import torch_dtype
from loaders.quantise import kernels, reference
from loaders.quantise.faults import NonFiniteError
from loaders.quantise.reference import Counts
from loaders.quantise.schemes import BLOCK, Rule, Scheme, scale_dtype, scale_shape

_BAND_BYTES: Final = 512 * 1024
"""Of the weight, for each core: with the scratch and the values it fits in an L2 cache of 2 MiB."""

_MOST_BANDS: Final = 64
"""A band is at most that part of a weight, so that the scratch stays below 5 % of it."""

_SMALL: Final = 1 << 14
"""Elements below which calling a kernel costs more than it saves."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Output:
    """Where a weight's values and scales go."""

    values: torch.Tensor
    scale: torch.Tensor


def allocate(shape: tuple[int, ...], dtype: torch.dtype, scheme: Scheme) -> Output:
    """Memory on the CPU for the values and scales of a weight [out, in] of that dtype."""
    name = str(dtype).removeprefix("torch.")
    return Output(
        values=torch.empty(shape, dtype=torch_dtype(scheme.rule.stored)),
        scale=torch.empty(
            scale_shape(shape, scheme.granularity), dtype=torch_dtype(scale_dtype(scheme, name))
        ),
    )


class Quantiser:
    """Quantises weights of one dtype by one scheme.

    Attributes:
        how: "torch.compile" or "row blocks".
        reason: why not torch.compile, else None.
        compile_seconds: spent on compiling, when it was made. Not part of any later call.
    """

    def __init__(
        self,
        scheme: Scheme,
        dtype: torch.dtype,
        *,
        device: torch.device | str = "cpu",
        compiled: bool = True,
    ) -> None:
        """Compiles, unless `compiled` is False or the host can't. `device` is where the weights
        will lie; threads are torch's (torch.set_num_threads)."""
        self.scheme, self.dtype, self.device = scheme, dtype, torch.device(device)
        self.reason = kernels.no_compiler(self.device) if compiled else "not asked for"
        self.compile_seconds = 0.0
        if self.reason is None:
            began = time.perf_counter()
            try:
                # torch's compiler uses deprecated parts of torch. Under a harness that makes errors
                # of warnings it would fail for that alone.
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self._compile()
            except Exception as error:  # no headers, a toolchain that fails: a host's affair
                said = " ".join(f"{type(error).__name__}: {error}".split())
                self.reason = f"compiling failed: {said[:300]}"
            self.compile_seconds = time.perf_counter() - began
        self.how = "torch.compile" if self.reason is None else "row blocks"

    @torch.no_grad()
    def __call__(self, weight: torch.Tensor, out: Output, *, name: str = "weight") -> Counts:
        """Quantises `weight` [out, in] into `out` and says which scales were replaced. A weight
        whose rows aren't one after another (a slice by columns) is done in row blocks.

        Errors as reference.quantise; ValueError if `out` is for another weight.
        """
        reference.check_weight(weight, name)
        self._check(weight, out, name)
        if weight.numel() == 0:
            return self._by_reference(weight, out, name)
        if self._compilable(weight):
            largest = self._run_kernels(weight, out, name)
        else:
            largest = self._run_bands(weight, out, name)
        scale, counts = reference.scales(largest, self.scheme.rule)
        out.scale.copy_(scale)
        subnormal = out.scale < torch.finfo(out.scale.dtype).tiny
        if bool(subnormal.any()):
            self._redo(weight, out, subnormal, name)
        return counts

    def _check(self, weight: torch.Tensor, out: Output, name: str) -> None:
        expected = scale_shape(tuple(weight.shape), self.scheme.granularity)
        if (weight.dtype, weight.device) != (self.dtype, out.values.device):
            raise ValueError(
                f"{name}: this quantiser is for {self.dtype} where its output lies, on "
                f"{out.values.device}; the weight is {weight.dtype} on {weight.device}"
            )
        if out.values.shape != weight.shape or tuple(out.scale.shape) != expected:
            raise ValueError(f"{name}: the output isn't for a weight of {tuple(weight.shape)}")

    def _compilable(self, weight: torch.Tensor) -> bool:
        if self.how != "torch.compile" or not weight.is_contiguous():
            return False
        if min(weight.shape) < 2 or weight.numel() < _SMALL:
            return False
        # Columns beyond the last whole block would need kernels of their own, for few weights.
        return self.scheme.granularity != "block" or (
            weight.shape[1] % BLOCK == 0 and weight.shape[1] > BLOCK
        )

    def _compile(self) -> None:
        """Makes the kernels and calls them once, with a weight large enough that the compiler
        decides for all cores."""
        rule = self.scheme.rule
        if self.scheme.granularity == "channel":
            self._fused = kernels.fused(rule, self.dtype)
        else:
            self._largest = kernels.largest_of(rule)
            self._divided = kernels.divided(rule, self.dtype)
        weight = torch.zeros(1024, 2048, dtype=self.dtype, device=self.device)
        values = torch.empty_like(weight, dtype=torch_dtype(rule.stored))
        with torch.no_grad():
            scale = weight.new_zeros(scale_shape((1024, 2048), self.scheme.granularity))
            self._run_kernels(weight, Output(values=values, scale=scale), "sample")
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _run_kernels(self, weight: torch.Tensor, out: Output, name: str) -> torch.Tensor:
        """Fills the values; returns the largest magnitudes in the weight's dtype, which holds them
        exactly."""
        # `data` is no view to autograd. A view's base is part of what was compiled for, so slices
        # of a read buffer would each compile again.
        weight, values = weight.data, out.values.data
        if self.scheme.granularity == "channel":
            largest: torch.Tensor = self._fused(weight, values)
            return _finite(largest.to(self.dtype), weight, name)
        rows, columns = weight.shape
        blocked = self.scheme.granularity == "block"
        groups = (rows, columns // BLOCK, BLOCK) if blocked else (rows, 1, columns)
        grouped = weight.view(groups).data
        each: torch.Tensor = self._largest(grouped)
        found = _by_block(each) if blocked else each.amax().reshape(1)
        largest = _finite(found, weight, name).to(self.dtype)
        scale, _ = reference.scales(largest, self.scheme.rule)
        wide = (
            scale.repeat_interleave(BLOCK, dim=0)[:rows] if blocked else scale.expand(rows)[:, None]
        )
        self._divided(grouped, values.view(groups).data, wide.clone().contiguous().data)
        return largest

    def _run_bands(self, weight: torch.Tensor, out: Output, name: str) -> torch.Tensor:
        """As `_run_kernels`, in plain torch."""
        rule, granularity = self.scheme.rule, self.scheme.granularity
        working = self.dtype if rule.precision == "weight" else torch.float32
        bands = list(_bands(weight, granularity == "block"))
        tallest = max(band.stop - band.start for band in bands)
        scratch = torch.empty(tallest, weight.shape[1], dtype=working, device=weight.device)
        if granularity == "tensor":
            each = [_absmax(weight[band], scratch, "tensor") for band in bands]
            whole = _finite(torch.stack(each).amax(dim=0), weight, name)
            scale, _ = reference.scales(whole, rule)
            for band in bands:
                _divide(weight[band], scale.reshape(1, 1), out.values[band], scratch, rule)
            return whole
        # Small tensors kept between large ones that come and go would hold the heap open.
        largest = weight.new_empty(scale_shape(tuple(weight.shape), granularity))
        for number, band in enumerate(bands):
            part = _finite(_absmax(weight[band], scratch, granularity), weight, name)
            scale, _ = reference.scales(part, rule)
            if granularity == "block":
                largest[number : number + 1] = part
                scale = scale.repeat_interleave(BLOCK, dim=1)[:, : weight.shape[1]]
            else:
                largest[band] = part
            _divide(weight[band], scale, out.values[band], scratch, rule)
        return largest

    def _redo(self, weight: torch.Tensor, out: Output, where: torch.Tensor, name: str) -> None:
        if self.scheme.granularity != "channel":
            self._by_reference(weight, out, name)
            return
        rows = where.reshape(-1).nonzero().reshape(-1)
        out.values[rows] = reference.quantise(weight[rows], self.scheme, name=name).values

    def _by_reference(self, weight: torch.Tensor, out: Output, name: str) -> Counts:
        done = reference.quantise(weight, self.scheme, name=name)
        out.values.copy_(done.values)
        out.scale.copy_(done.scale)
        return done.counts


def _finite(largest: torch.Tensor, weight: torch.Tensor, name: str) -> torch.Tensor:
    # A NaN or infinity is the largest magnitude of what it lies in, so this sees every one.
    if not bool(torch.isfinite(largest).all()):
        raise NonFiniteError(name, weight)
    return largest


def _bands(weight: torch.Tensor, blocked: bool) -> Iterator[slice]:
    rows, columns = weight.shape
    row_bytes = columns * weight.element_size()
    most = max(1, min(torch.get_num_threads() * _BAND_BYTES // row_bytes, rows // _MOST_BANDS))
    step = BLOCK if blocked else most
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


_BITS: Final = {
    torch.bfloat16: (torch.int16, 0x7FFF),
    torch.float16: (torch.int16, 0x7FFF),
    torch.float32: (torch.int32, 0x7FFFFFFF),
}
"""Floats without their sign bit are ordered as integers are, NaN above infinity above all else; and
torch finds the largest integer of a row several times as fast as the largest float."""


def _absmax(weight: torch.Tensor, scratch: torch.Tensor, granularity: str) -> torch.Tensor:
    kind, mask = _BITS[weight.dtype]
    rows, columns = weight.shape
    room = scratch.reshape(-1).view(kind)[: rows * columns].view(rows, columns)
    bits = torch.bitwise_and(weight.view(kind), mask, out=room)
    if granularity == "channel":
        return bits.amax(dim=1, keepdim=True).view(weight.dtype)
    each = bits.amax(dim=0, keepdim=True)
    if granularity == "tensor":
        return each.amax(dim=1).view(weight.dtype)
    padded = torch.nn.functional.pad(each, (0, -columns % BLOCK))
    return padded.view(1, -1, BLOCK).amax(dim=2).view(weight.dtype)


def _by_block(each: torch.Tensor) -> torch.Tensor:
    """[out, in / 128] -> [ceil(out / 128), in / 128]."""
    below = -each.shape[0] % BLOCK
    padded = torch.nn.functional.pad(each, (0, 0, 0, below))
    return padded.view(-1, BLOCK, each.shape[1]).amax(dim=1)


def _divide(
    weight: torch.Tensor,
    scale: torch.Tensor,
    values: torch.Tensor,
    scratch: torch.Tensor,
    rule: Rule,
) -> None:
    """reference.stored(weight / scale) in the scratch, clamped as in kernels._quantised."""
    room = scratch[: len(weight)]
    if rule.precision == "float32":
        torch.div(room.copy_(weight), scale, out=room)
    else:
        torch.div(weight, scale, out=room)
    if rule.stored == "int8":
        room.round_()
        if rule.divisor > rule.high:
            kind, _ = _BITS[room.dtype]
            # Positive floats are ordered as their bits are, negative ones are negative integers.
            most = torch.tensor(rule.high, dtype=room.dtype).view(kind).item()
            room.view(kind).clamp_max_(most)
    values.copy_(room)
