"""One new weight file, written a tensor at a time in whatever order they come.

The header is known before any tensor is, so memory holds one weight, its values and their scales,
however large the file is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import xxhash
from safetensors import safe_open

from bench.quantize.plan import Shard, Stored
from loaders.checkpoint.dtypes import BY_NAME, code, itemsize
from loaders.checkpoint.manifest import TensorSpec
from loaders.io.errors import LoadError, naming
from loaders.quantise.fast import Output, Quantiser, allocate
from loaders.quantise.reference import Counts
from loaders.quantise.schemes import Scheme

_PIECE = 1 << 24


class ShardWriter:
    """A safetensors file of known tensors. `put` each once, then `finish`; widest dtypes lie first,
    as in the library's own files."""

    def __init__(self, path: Path, tensors: Iterable[Stored]) -> None:
        """Makes the file. FileExistsError if it is there."""
        order = sorted(tensors, key=lambda tensor: (-itemsize(tensor.dtype), tensor.name))
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        self._missing: dict[str, tuple[Stored, int]] = {}
        end = 0
        for tensor in order:
            header[tensor.name] = {
                "dtype": code(tensor.dtype),
                "shape": file_shape(tensor),
                "data_offsets": [end, end + tensor.nbytes],
            }
            self._missing[tensor.name] = (tensor, end)
            end += tensor.nbytes
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        self._start = 8 + len(text)
        self._file = path.open("xb")
        self._file.write(len(text).to_bytes(8, "little") + text)
        self._file.truncate(self._start + end)

    def put(self, name: str, tensor: torch.Tensor) -> None:
        """Writes one tensor. ValueError unless it is what was announced, and not yet written."""
        announced, offset = self._missing[name]
        found = (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        if found != (announced.dtype, announced.shape):
            raise ValueError(f"{name}: announced {announced}, got {found}")
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        self._file.seek(self._start + offset)
        self._file.write(raw.data)
        del self._missing[name]

    def finish(self) -> None:
        """Syncs the file. ValueError if a tensor wasn't written."""
        if self._missing:
            raise ValueError(f"never written: {', '.join(self._missing)}")
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


class Quantisers:
    """One `Quantiser` for each dtype that occurs, made when it does; each compiles once."""

    def __init__(self, scheme: Scheme, compiled: bool) -> None:
        self._scheme, self._compiled = scheme, compiled
        self._made: dict[torch.dtype, Quantiser] = {}

    def of(self, dtype: torch.dtype) -> Quantiser:
        if dtype not in self._made:
            self._made[dtype] = Quantiser(self._scheme, dtype, compiled=self._compiled)
        return self._made[dtype]

    @property
    def how(self) -> str:
        return ", ".join(sorted({one.how for one in self._made.values()})) or "nothing"

    @property
    def compile_seconds(self) -> float:
        return sum(one.compile_seconds for one in self._made.values())


def write_shard(
    shard: Shard, source: str, path: Path, scheme: Scheme, quantisers: Quantisers
) -> Counts:
    """Writes the file `path` for the file `source`; says which scales were replaced. LoadError if
    the source can't be read, faults.QuantiseError for a weight that can't be quantised."""
    zero = underflowed = 0
    with ShardWriter(path, (stored for step in shard.steps for stored in step.stored)) as out:
        with ExitStack() as stack:
            with naming(source):  # reading alone: an error of writing isn't the source's
                reader = stack.enter_context(safe_open(source, framework="pt"))
            for step in shard.steps:
                tensor = _read(reader, source, step.source)
                if not step.quantised:
                    out.put(step.source.name, tensor)
                    continue
                made = allocate(step.source.shape, tensor.dtype, scheme)
                counts = quantisers.of(tensor.dtype)(tensor, made, name=step.source.name)
                zero, underflowed = zero + counts.zero, underflowed + counts.underflowed
                _put_quantised(out, step.stored, made, step.source.shape)
        out.finish()
    return Counts(zero=zero, underflowed=underflowed)


def _read(reader: Any, source: str, spec: TensorSpec) -> torch.Tensor:
    """LoadError also where the file isn't the one any more that was examined."""
    with naming(source, spec.name):
        tensor: torch.Tensor = reader.get_tensor(spec.name)
    found = (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
    if found != (spec.dtype, spec.shape):
        raise LoadError(
            f"{source}: tensor {spec.name!r}: expected {spec.dtype} {list(spec.shape)}, found "
            f"{found[0]} {list(found[1])}; the file changed since it was examined"
        )
    return tensor


def _put_quantised(
    out: ShardWriter, stored: tuple[Stored, ...], made: Output, shape: tuple[int, ...]
) -> None:
    values, scale, *more = stored
    out.put(values.name, packed(made.values) if values.dtype == "int32" else made.values)
    out.put(scale.name, made.scale)
    for one in more:
        whole = one.name.endswith("_shape")
        out.put(one.name, torch.tensor(shape) if whole else torch.zeros(one.shape))


def packed(values: torch.Tensor) -> torch.Tensor:
    """int8 [out, in] as compressed-tensors' pack-quantized int32 [out, ceil(in / 4)]: the value
    plus 128 as a byte, the first in the lowest; the rest of the last word is 0 there."""
    unsigned = values.view(torch.uint8) ^ 0x80
    padded = torch.nn.functional.pad(unsigned, (0, -values.shape[1] % 4))
    return padded.contiguous().view(torch.int32)


def file_shape(tensor: Stored) -> tuple[int, ...]:
    """The shape as safetensors counts: of values, also where one of torch's elements holds two."""
    packed = BY_NAME[tensor.dtype].packed
    return tensor.shape if packed == 1 else (*tensor.shape[:-1], tensor.shape[-1] * packed)


def digest(path: Path) -> str:
    """xxh3-128 of a file's bytes."""
    found = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            found.update(piece)
    return found.hexdigest()
