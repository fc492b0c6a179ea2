"""Right before fast: what a load must have yielded, and what is wrong with what it did yield.

The reference is read straight from the files, at the manifest's offsets, by none of the loaders.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash

from bench.measuring.consume import WRAP, byte_sum, digest, placed_sum
from loaders.checkpoint.manifest import Checkpoint, TensorSpec
from loaders.io.errors import TruncatedError

SHOWN = 5
"""Faults named for one load: a broken loader has thousands."""

BLOCK = 8 << 20
"""Bytes read at a time: a multiple of 8, so that the sums of the pieces add up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A tensor as the consumer saw it while it was valid. `oddity` says what makes its memory other
    than its contents (strides, a conjugation not carried out yet), None as it should be."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    byte_sum: int
    oddity: str | None = None

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor, total: int) -> Seen:
        if not isinstance(name, str):
            raise TypeError(f"expected a tensor's name, got {name!r}")
        return cls(
            name=name,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            nbytes=tensor.nbytes,
            byte_sum=total,
            oddity=_oddity(tensor),
        )

    @property
    def form(self) -> str:
        return " ".join(filter(None, [self.dtype, str(list(self.shape)), self.oddity]))


Kept = tuple[Seen, torch.Tensor]
"""A tensor that is still alive, and how it was seen when it came."""


def _oddity(tensor: torch.Tensor) -> str | None:
    if not tensor.is_contiguous():
        return f"not contiguous (strides {list(tensor.stride())})"
    if tensor.is_conj() or tensor.is_neg():
        return "with a conjugation or negation that isn't carried out yet"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Digest and sum of every tensor's bytes in the files."""

    digests: dict[str, str]
    sums: dict[str, int]

    def digest_faults(self, name: str, tensor: torch.Tensor) -> list[str]:
        return self.found_faults(name, digest(tensor)) if name in self.digests else []

    def found_faults(self, name: str, found: str) -> list[str]:
        """As `digest_faults`, from the digest."""
        expected = self.digests.get(name, found)
        return [] if found == expected else [_wrong(name, expected, found)]


def _wrong(name: str, expected: str, found: str) -> str:
    return f"{name}: wrong bytes (digest {expected} expected, {found} found)"


def read_reference(checkpoint: Checkpoint) -> Reference:
    """Reads every file, and in it every tensor, with plain reads: a mapping would end this process
    by SIGBUS where the storage fails, and some file systems have none. Tensors without an offset
    (strided views in a pickle) have no reference of their own and are left out.

    TruncatedError where a file is shorter than its manifest says; OSError.
    """
    digests: dict[str, str] = {}
    sums: dict[str, int] = {}
    by_file: dict[str, list[TensorSpec]] = {}
    for tensor in checkpoint.tensors:
        by_file.setdefault(tensor.file, []).append(tensor)
    room = memoryview(bytearray(BLOCK))
    for file in checkpoint.files:
        with Path(file.path).open("rb", buffering=0) as opened:
            fd = opened.fileno()
            for tensor in by_file.get(file.name, []):
                if tensor.offset is None:
                    continue
                total, at, hasher = 0, 0, xxhash.xxh3_128()
                for block in _blocks(fd, file.path, tensor.offset, tensor.nbytes, room):
                    total += placed_sum(block, at)
                    at += len(block)
                    hasher.update(block)
                digests[tensor.name] = hasher.hexdigest()
                sums[tensor.name] = total % WRAP
    return Reference(digests=digests, sums=sums)


def _blocks(fd: int, path: str, offset: int, nbytes: int, room: memoryview) -> Iterator[memoryview]:
    """The bytes from `offset` on, block by block, each valid until the next is asked for."""
    end = offset + nbytes
    while offset < end:
        block = room[: min(BLOCK, end - offset)]
        filled = 0
        while filled < len(block):
            got = os.preadv(fd, [block[filled:]], offset + filled)
            if got == 0:
                raise TruncatedError(path, expected=end, found=os.fstat(fd).st_size)
            filled += got
        yield block
        offset += filled


def faults_of(
    seen: Sequence[Seen],
    kept: Sequence[Kept],
    checkpoint: Checkpoint,
    expected: Reference | None,
    *,
    made_up: bool,
) -> list[str]:
    """What is wrong with a timed load, the first few: tensors missing, surplus or twice; dtype or
    shape other than the manifest's; bytes whose sum is not the reference's; owned memory (`kept`)
    that changed after it was handed out, or whose bytes are other ones of the same sum. `made_up`
    contents (random fill) can't be compared."""
    manifest = {tensor.name: tensor for tensor in checkpoint.tensors}
    faults = [*_name_faults(seen, manifest), *_form_faults(seen, manifest)]
    if expected is None or made_up:
        expected = Reference(digests={}, sums={})
    for one in seen:
        right = expected.sums.get(one.name)
        if right is not None and right != one.byte_sum:
            faults.append(f"{one.name}: wrong bytes arrived in the timed load")
    if not faults:
        for one, tensor in kept:
            if byte_sum(tensor) != one.byte_sum:
                faults.append(
                    f"{one.name}: its memory changed after it was handed out (one buffer for "
                    f"several tensors? such a loader's ownership is `borrowed`)"
                )
            else:
                faults.extend(expected.digest_faults(one.name, tensor))
    return (faults or shared_memory(kept, checkpoint))[:SHOWN]


def shared_memory(kept: Sequence[Kept], checkpoint: Checkpoint) -> list[str]:
    """Tensors that are alive at the same time and lie in the same memory, although the checkpoint
    doesn't tie them."""
    storage = {tensor.name: (tensor.file, tensor.storage) for tensor in checkpoint.tensors}
    places = sorted(
        (tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, one.name)
        for one, tensor in kept
        if tensor.nbytes
    )
    faults = []
    reach, holder = 0, ""
    for begin, end, name in places:
        tied = holder and storage[name] == storage[holder] and storage[name][1] is not None
        if begin < reach and not tied:
            faults.append(f"{name}: lies in the memory of {holder}, which is still in use")
        if end > reach:
            reach, holder = end, name
    return faults


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
        if (one.dtype, one.shape, one.oddity) != (spec.dtype, spec.shape, None):
            expected = f"{spec.dtype} {list(spec.shape)}"
            faults.append(f"{one.name}: {expected} expected, {one.form} yielded")
    return faults
