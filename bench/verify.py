"""Right before fast: what a load must have yielded, and what is wrong with what it did yield.

The reference is read straight from the files, at the manifest's offsets, by none of the loaders.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash

from bench.consume import byte_sum, digest, lane_sum
from loaders.checkpoint.dtypes import torch_dtype
from loaders.checkpoint.manifest import Checkpoint, TensorSpec

SHOWN = 5
"""Faults named for one load: a broken loader has thousands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A tensor as the consumer saw it while it was valid."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    byte_sum: int

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor, total: int) -> Seen:
        return cls(
            name=name,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            nbytes=tensor.nbytes,
            byte_sum=total,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Digest and sum of every tensor's bytes in the files, and the sum of each whole file."""

    digests: dict[str, str]
    sums: dict[str, int]
    file_sums: dict[str, int]

    def digest_faults(self, name: str, tensor: torch.Tensor) -> list[str]:
        expected = self.digests.get(name)
        if expected is None:
            return []
        found = digest(tensor)
        return [] if found == expected else [_wrong(name, expected, found)]


def _wrong(name: str, expected: str, found: str) -> str:
    return f"{name}: wrong bytes (digest {expected} expected, {found} found)"


def read_reference(checkpoint: Checkpoint) -> Reference:
    """Reads every file once. Tensors without an offset (strided views in a pickle) have no
    reference of their own and are left out."""
    digests: dict[str, str] = {}
    sums: dict[str, int] = {}
    file_sums: dict[str, int] = {}
    by_file: dict[str, list[TensorSpec]] = {}
    for tensor in checkpoint.tensors:
        by_file.setdefault(tensor.file, []).append(tensor)
    for file in checkpoint.files:
        if file.size == 0:
            continue
        with Path(file.path).open("rb") as opened:
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
        with memoryview(mapped) as whole:
            file_sums[file.name] = lane_sum(whole)
            for tensor in by_file.get(file.name, []):
                if tensor.offset is None:
                    continue
                with whole[tensor.offset : tensor.offset + tensor.nbytes] as part:
                    digests[tensor.name] = xxhash.xxh3_128_hexdigest(part)
                    sums[tensor.name] = lane_sum(part) if tensor.nbytes else 0
        mapped.close()  # at once: a mapped page can't be evicted
    return Reference(digests=digests, sums=sums, file_sums=file_sums)


def faults_of(
    seen: Sequence[Seen],
    kept: Sequence[torch.Tensor],
    checkpoint: Checkpoint,
    expected: Reference | None,
    *,
    made_up: bool,
) -> list[str]:
    """What is wrong with a timed load, the first few: tensors missing, surplus or twice; dtype or
    shape other than the manifest's; bytes whose sum is not the reference's; owned memory that
    changed after it was handed out. `made_up` contents (random fill) can't be compared."""
    manifest = {tensor.name: tensor for tensor in checkpoint.tensors}
    faults = [*_name_faults(seen, manifest), *_form_faults(seen, manifest)]
    if expected is not None and not made_up:
        for one in seen:
            right = expected.sums.get(one.name)
            if right is not None and right != one.byte_sum:
                faults.append(f"{one.name}: wrong bytes arrived in the timed load")
    for one, tensor in zip(seen, kept, strict=False):
        if byte_sum(tensor) != one.byte_sum:
            faults.append(
                f"{one.name}: its memory changed after it was handed out (one buffer for several "
                f"tensors? such a loader's ownership is `borrowed`)"
            )
    return faults[:SHOWN]


def _name_faults(seen: Sequence[Seen], manifest: dict[str, TensorSpec]) -> list[str]:
    counts = Counter(one.name for one in seen)
    missing = [name for name in manifest if name not in counts]
    surplus = [name for name in counts if name not in manifest]
    twice = [name for name, count in counts.items() if count > 1]
    named = [("missing", missing), ("not in the checkpoint", surplus), ("yielded twice", twice)]
    return [
        f"{len(names)} tensor(s) {what}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
        for what, names in named
        if names
    ]


def _form_faults(seen: Sequence[Seen], manifest: dict[str, TensorSpec]) -> list[str]:
    faults = []
    for one in seen:
        spec = manifest.get(one.name)
        if spec is None:
            continue
        dtype = str(torch_dtype(spec.dtype)).removeprefix("torch.")
        if (one.dtype, one.shape) != (dtype, spec.shape):
            faults.append(
                f"{one.name}: {dtype} {list(spec.shape)} expected, "
                f"{one.dtype} {list(one.shape)} yielded"
            )
    return faults
