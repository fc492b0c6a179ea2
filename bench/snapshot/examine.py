"""Whether a snapshot is the one that is wanted, and still what was written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from bench.measuring.cores import effective_cores
from loaders.checkpoint.manifest import Checkpoint, CheckpointError, Problem, UnreadableError
from loaders.checkpoint.read import open_checkpoint
from loaders.checkpoint.snapshot_file import (
    AGAIN,
    checksum_mismatch,
    other_layout,
    wrong_checksums,
)
from loaders.checkpoint.text import shown
from loaders.io.errors import LoadError
from loaders.snapshot.card import NAME, Card, rank_in, read_card, unlike
from loaders.snapshot.digests import content_of, digests, structure_of
from loaders.snapshot.format import SUFFIX, HeaderError

Told = Callable[[int], None]


def examined(
    checkpoint: Checkpoint,
    *,
    asked: Mapping[str, int],
    source: str | None,
    verify: bool,
    on_bytes: Told,
) -> Checkpoint:
    """The manifest of a snapshot, or of one rank's sharded state with its card, with what else is
    wrong with it. `asked` are the degrees and the rank that are wanted ({"tp": 4}); `source` is the
    checkpoint that it must have been made from, which is read whole; `verify` reads every byte, of
    a folder of snapshots those of every rank.

    UnreadableError if it is neither or the source can't be read; what opening the source raises.
    """
    if checkpoint.errors:
        return checkpoint
    problems: list[Problem] = []
    card = None
    if checkpoint.format != "snapshot":
        try:
            card = read_card(checkpoint.root)
        except (HeaderError, OSError) as error:
            return _with(checkpoint, [_faulty_card(error)])
        rank = rank_in(checkpoint, card.header.layout) if card is not None else None
        if card is None or rank is None:
            raise UnreadableError(
                f"{shown(checkpoint.origin)}: --verify, --source, --tp, --pp, --ep and --rank are "
                "about what `coldload snapshot` made; this is "
                f"{checkpoint.format} without its {NAME}"
            )
        checkpoint = replace(checkpoint, facts=card.facts(rank))
        reason = unlike(checkpoint, card)
        if reason is not None:
            return _with(checkpoint, [Problem(code="other-tensors", message=reason)])
    assert checkpoint.facts is not None
    reason = other_layout(checkpoint.facts, asked)
    if reason is not None:
        text = f"{reason}; `coldload snapshot` makes one for those degrees"
        problems.append(Problem(code="other-layout", message=text))
    if source is not None:
        problems += _other_source(checkpoint, open_checkpoint(source), on_bytes)
    if verify:
        problems += _damaged(checkpoint, card, on_bytes)
    return _with(checkpoint, problems)


def _with(checkpoint: Checkpoint, problems: list[Problem]) -> Checkpoint:
    found = sorted((*checkpoint.problems, *problems), key=lambda one: one.severity)
    return replace(checkpoint, problems=tuple(found))


def _faulty_card(error: Exception) -> Problem:
    return Problem(code="corrupt-header", file=NAME, message=f"{NAME}: {error}; {AGAIN}")


def _other_source(checkpoint: Checkpoint, source: Checkpoint, on_bytes: Told) -> list[Problem]:
    assert checkpoint.facts is not None
    made_from = checkpoint.facts["source"]
    if structure_of(source) != made_from["structure"]:
        what = (
            f"its names, dtypes or shapes are others ({len(source.tensors):,} tensors of "
            f"{source.tensor_bytes:,} bytes, expected {made_from['tensors']:,} of "
            f"{made_from['bytes']:,})"
        )
    else:
        found = content_of(digests(source, threads=effective_cores(), on_bytes=on_bytes))
        if found == made_from["content"]:
            return []
        what = f"its bytes are others (digest {made_from['content']} expected, {found} found)"
    text = (
        f"made from another checkpoint ({shown(made_from['name'])}) than {shown(source.origin)}: "
        f"{what}; make it again from that one"
    )
    return [Problem(code="other-source", message=text)]


def _damaged(checkpoint: Checkpoint, card: Card | None, on_bytes: Told) -> list[Problem]:
    """Parameters whose bytes changed: of any rank in a folder of snapshots, or of this rank's
    sharded state."""
    others = [one.file for one in checkpoint.ignored if one.file.endswith(SUFFIX)]
    paths = [*(file.path for file in checkpoint.files), *(f"{checkpoint.root}/{o}" for o in others)]
    if card is not None:
        paths = paths[:1]  # any of a rank's parts stands for all of them
    problems: list[Problem] = []
    for path in paths:
        name = Path(path).name
        try:
            one = open_checkpoint(path)
            found = digests(one, threads=effective_cores(), on_bytes=on_bytes)
            if card is None:
                problems += wrong_checksums(one, found)
            else:
                problems += _unlike_card(one, card, found)
        except (LoadError, CheckpointError, HeaderError, OSError) as error:
            text = f"{shown(name)}: can't be read: {error}"
            problems.append(Problem(code="unreadable-file", file=name, message=text))
    return problems


def _unlike_card(checkpoint: Checkpoint, card: Card, found: Mapping[str, str]) -> list[Problem]:
    rank = rank_in(checkpoint, card.header.layout)
    assert rank is not None
    return [
        checksum_mismatch(spec.file, spec.name, card.ranks[rank][spec.name], found.get(spec.name))
        for spec in checkpoint.tensors
        if card.ranks[rank][spec.name] != found.get(spec.name)
    ]
