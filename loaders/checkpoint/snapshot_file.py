"""A folder of snapshots, or one, as a manifest: the parameters of one rank, checked from headers.

The format is ours: see loaders/snapshot/format.py. Ranks hold the same names with other slices, so
a manifest is of one rank, the first in a folder; the others are looked at, too, and left out.

Problem codes made here: half-written, other-version, size-mismatch, corrupt-header, rank-mismatch,
mixed-snapshots, no-tensors; ranks-missing is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from loaders.checkpoint.listing import Item
from loaders.checkpoint.manifest import Checkpoint, Ignored, Problem, TensorSpec
from loaders.checkpoint.regular import opened, read_at
from loaders.checkpoint.text import listed, shown
from loaders.snapshot.format import (
    HEAD,
    Entry,
    Header,
    HeaderError,
    Layout,
    file_name,
    up,
)
from loaders.snapshot.parse import head_of, parsed

AGAIN = "make it again with `coldload snapshot`"
_NAMED = 5


def read_header(path: str) -> Header:
    """The header of a snapshot; no parameter is read. HeaderError, OSError."""
    with opened(path) as (fd, size):
        length, check = head_of(read_at(fd, 0, HEAD.size), size)
        text = read_at(fd, HEAD.size, length)
    return parsed(text, check, size)


def read_snapshots(
    items: Sequence[Item],
) -> tuple[Header | None, list[TensorSpec], list[Item], list[Ignored], list[Problem]]:
    """Of the snapshots of a folder, or of one alone: the first rank's header, its tensors and its
    file, the other ranks' files, and what is wrong with any of them."""
    headers: list[tuple[Item, Header]] = []
    problems: list[Problem] = []
    for item in items:
        fault = item.problem()
        if fault is not None:
            problems.append(fault)
            continue
        try:
            headers.append((item, read_header(item.path)))
        except HeaderError as error:
            problems.append(_problem(error.code, f"{error}; {AGAIN}", item.name))
        except OSError as error:
            text = f"can't be read: {error.strerror or error}"
            problems.append(_problem("unreadable-file", text, item.name))
    headers.sort(key=lambda one: one[1].layout.rank)
    problems += _together(headers)
    if not headers:
        return None, [], list(items), [], problems
    item, header = headers[0]
    if not header.parameters:
        problems.append(_problem("no-tensors", "it holds no parameter", item.name))
    left_out = [
        Ignored(file=other.name, reason=f"rank {its.layout.rank}'s; give its path to read it")
        for other, its in headers[1:]
    ]
    return (
        header,
        [_spec(entry, item.name) for entry in header.parameters],
        [item],
        left_out,
        [*problems],
    )


def _spec(entry: Entry, file: str) -> TensorSpec:
    return TensorSpec(
        name=entry.name,
        dtype=entry.dtype,
        shape=entry.shape,
        file=file,
        offset=entry.offset,
        nbytes=entry.nbytes,
    )


def _together(headers: Sequence[tuple[Item, Header]]) -> list[Problem]:
    """What shows only when the headers of all ranks are known."""
    problems = []
    for item, header in headers:
        name = file_name(header.layout)
        if item.name != name:
            text = f"it says that it is {name}: copied over or renamed; {AGAIN}"
            problems.append(_problem("rank-mismatch", text, item.name))
        what = _common(headers[0][1], header)
        if what is not None:
            text = f"another {what} than in {shown(headers[0][0].name)}; {AGAIN}"
            problems.append(_problem("mixed-snapshots", text, item.name))
    there = {header.layout.rank for _, header in headers}
    if headers and len(headers) > 1 and not problems:
        world = headers[0][1].layout.world
        # A header may claim any number of ranks: only the first ones that lack are looked for.
        first = list(islice((rank for rank in range(world) if rank not in there), _NAMED))
        if first:
            more = world - len(there) - len(first)
            text = f"of {world} ranks these aren't here: {listed(first, _NAMED)}"
            text += f" and {more} more" if more else ""
            problems.append(Problem(code="ranks-missing", message=text, severity="warning"))
    return problems


def _common(first: Header, other: Header) -> str | None:
    """What ranks of one snapshot must have in common, and these two haven't."""
    if replace(first.layout, rank=0) != replace(other.layout, rank=0):
        return "layout"
    if replace(first.source, name="") != replace(other.source, name=""):
        return "source"
    state = (first.processing, first.device_layout, first.quantisation)
    if state != (other.processing, other.device_layout, other.quantisation):
        return "state"
    return None


def wrong_checksums(checkpoint: Checkpoint, digests: Mapping[str, str]) -> list[Problem]:
    """What in a snapshot's manifest isn't as it was written: parameters by their bytes (xxh3-128,
    by name), and the zeros between them, which are read here. HeaderError, OSError where the file
    can't be read again."""
    (file,) = checkpoint.files
    header = read_header(file.path)
    return [
        *(
            checksum_mismatch(file.name, entry.name, entry.xxh3, digests.get(entry.name))
            for entry in header.parameters
            if digests.get(entry.name) != entry.xxh3
        ),
        *_padding_changed(file.path, file.name, header),
    ]


def checksum_mismatch(file: str, tensor: str, expected: str, found: str | None) -> Problem:
    """A parameter whose bytes aren't those that were written, by their xxh3-128."""
    return Problem(
        code="checksum-mismatch",
        file=file,
        tensor=tensor,
        message=f"{shown(file)}: {shown(tensor)}: its bytes aren't those that were written (xxh3 "
        f"{expected} expected, {found} found); {AGAIN}",
    )


def _padding_changed(path: str, file: str, header: Header) -> Iterator[Problem]:
    with opened(path) as (fd, _):
        for entry in header.parameters:
            end = entry.offset + entry.nbytes
            if read_at(fd, end, up(end) - end).strip(b"\0"):
                text = f"the zeros behind {shown(entry.name)} aren't what was written"
                yield _problem("checksum-mismatch", f"{text}; {AGAIN}", file)


def other_layout(facts: Mapping[str, Any], asked: Mapping[str, int]) -> str | None:
    """Why a snapshot of these facts isn't what was asked for, by degree; None if it is."""
    found = Layout(**facts["layout"])
    differ = {key: value for key, value in asked.items() if getattr(found, key) != value}
    if not differ:
        return None
    wanted = ", ".join(f"{key} {value}" for key, value in differ.items())
    return f"made for {found}, rank {found.rank}; asked for was {wanted}: its slices are others"


def _problem(code: str, what: str, file: str) -> Problem:
    return Problem(code=code, message=f"{shown(file)}: {what}", file=file)
