"""Which ranges of the files a rank has to read, and where their bytes go. Pure arithmetic."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from loaders.checkpoint.manifest import Checkpoint
from loaders.slicing.copies import Copy, copies_of
from loaders.slicing.plan import Parameter

GAP = 16 << 10
"""Bytes between two wanted ranges that are rather read than skipped: a request of its own costs
more than reading so much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """One range of a file. `copies` have sources relative to the range's first byte; those of one
    tensor stand together in `groups`: (first byte, byte behind the last, copies), in order and
    disjoint."""

    file: str
    offset: int
    length: int
    groups: tuple[tuple[int, int, tuple[Copy, ...]], ...]

    def within(self, start: int, length: int) -> Iterator[Copy]:
        """What of the copies lies in [start, start + length) of the range: whole rows together, a
        cut row by itself. Sources are then relative to `start`."""
        end = start + length
        first = max(bisect_right(self.groups, start, key=lambda group: group[0]) - 1, 0)
        for low, high, copies in self.groups[first:]:
            if low >= end:
                return
            if high > start:
                for copy in copies:
                    yield from clipped(copy, start, end)


def clipped(copy: Copy, start: int, end: int) -> Iterator[Copy]:
    """The parts of a copy whose sources lie in [start, end), relative to `start`."""
    stride, length = copy.source_stride, copy.length
    # the first row that ends behind `start`, and the first that begins at `end` or behind
    first = max(0, -(-(start - copy.source - length + 1) // stride)) if stride else 0
    last = min(copy.count, max(0, -(-(end - copy.source) // stride)))
    if first >= last:
        return
    whole_first = first if copy.source + first * stride >= start else first + 1
    whole_last = last if copy.source + (last - 1) * stride + length <= end else last - 1
    if whole_first > whole_last:  # one row, cut on both sides
        yield _part_of_row(copy, first, start, end)
        return
    if whole_first > first:
        yield _part_of_row(copy, first, start, end)
    if whole_last > whole_first:
        part = copy.rows(whole_first, whole_last)
        yield replace(part, source=part.source - start)
    if whole_last < last:
        yield _part_of_row(copy, whole_last, start, end)


def _part_of_row(copy: Copy, row: int, start: int, end: int) -> Copy:
    begin = copy.source + row * copy.source_stride
    low, high = max(begin, start), min(begin + copy.length, end)
    return replace(
        copy,
        source=low - start,
        target=copy.target + row * copy.target_stride + (low - begin),
        length=high - low,
        source_stride=high - low,
        target_stride=high - low,
        count=1,
    )


@dataclass(slots=True)
class _Open:
    """A range while it grows."""

    file: str
    offset: int
    end: int
    groups: list[tuple[int, int, tuple[Copy, ...]]] = field(default_factory=list)

    def done(self) -> Fetch:
        return Fetch(
            file=self.file,
            offset=self.offset,
            length=self.end - self.offset,
            groups=tuple(self.groups),
        )


def fetches(checkpoint: Checkpoint, parameters: Sequence[Parameter], gap: int = GAP) -> list[Fetch]:
    """The ranges that fill `parameters`, in the order of files and offsets, ranges less than `gap`
    bytes apart in one. A strided cut is read from its first row to its last: rows are shorter than
    what a device gives at a time. ValueError for a tensor that isn't one run of its file."""
    specs = {spec.name: spec for spec in checkpoint.tensors}
    shapes = {spec.name: spec.shape for spec in checkpoint.tensors}
    by_tensor: dict[str, list[Copy]] = {}
    for number, parameter in enumerate(parameters):
        for copy in copies_of(number, parameter, shapes):
            by_tensor.setdefault(copy.tensor, []).append(copy)
    order = {file.name: number for number, file in enumerate(checkpoint.files)}
    wanted = []
    for name, copies in by_tensor.items():
        spec = specs[name]
        if spec.offset is None:
            raise ValueError(f"{spec.file}: tensor {name!r} isn't contiguous in the file")
        for part in _apart(copies, gap):
            first = spec.offset + min(copy.source for copy in part)
            end = spec.offset + max(copy.source_end for copy in part)
            wanted.append((order[spec.file], first, end, spec, part))
    done: list[Fetch] = []
    now: _Open | None = None
    for _, first, end, spec, part in sorted(wanted, key=lambda one: one[:3]):
        if now is None or now.file != spec.file or first - now.end > gap:
            if now is not None:
                done.append(now.done())
            now = _Open(file=spec.file, offset=first, end=first)
        assert spec.offset is not None
        shift = spec.offset - now.offset
        moved = tuple(replace(copy, source=copy.source + shift) for copy in part)
        now.groups.append((first - now.offset, end - now.offset, moved))
        now.end = max(now.end, end)
    return [*done, now.done()] if now is not None else done


def _apart(copies: Sequence[Copy], gap: int) -> list[list[Copy]]:
    """The copies of one tensor in groups that lie more than `gap` bytes apart: q, k and v of a
    fused matrix are three ranges of it."""
    groups: list[list[Copy]] = []
    reach = 0
    for copy in sorted(copies, key=lambda one: one.source):
        if groups and copy.source - reach <= gap:
            groups[-1].append(copy)
        else:
            groups.append([copy])
        reach = max(reach if len(groups[-1]) > 1 else 0, copy.source_end)
    return groups
