"""Whether a snapshot is the one that is wanted, and still what was written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from bench.measuring.cores import effective_cores
from loaders.checkpoint.manifest import Checkpoint, Problem, UnreadableError
from loaders.checkpoint.read import open_checkpoint
from loaders.checkpoint.snapshot_file import other_layout, wrong_checksums
from loaders.checkpoint.text import shown
from loaders.io.errors import LoadError
from loaders.snapshot.digests import content_of, digests, structure_of
from loaders.snapshot.format import SUFFIX

Told = Callable[[int], None]


def examined(
    checkpoint: Checkpoint,
    *,
    asked: Mapping[str, int],
    source: str | None,
    verify: bool,
    on_bytes: Told,
) -> Checkpoint:
    """The manifest of a snapshot with what else is wrong with it. `asked` are the degrees that are
    wanted ({"tp": 4}); `source` is the checkpoint that it must have been made from, which is read
    whole; `verify` reads every rank's file whole.

    UnreadableError if it is no snapshot or the source can't be read; what opening the source
    raises.
    """
    if checkpoint.format != "snapshot":
        raise UnreadableError(
            f"{shown(checkpoint.origin)}: --verify, --source and --tp are about snapshots; this is "
            f"{checkpoint.format}"
        )
    if checkpoint.errors or checkpoint.facts is None:
        return checkpoint
    problems: list[Problem] = []
    reason = other_layout(checkpoint.facts, asked)
    if reason is not None:
        text = f"{reason}; `coldload snapshot` makes one for those degrees"
        problems.append(Problem(code="other-layout", message=text))
    if source is not None:
        problems += _other_source(checkpoint, open_checkpoint(source), on_bytes)
    if verify:
        problems += _damaged(checkpoint, on_bytes)
    found = sorted((*checkpoint.problems, *problems), key=lambda one: one.severity)
    return replace(checkpoint, problems=tuple(found))


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


def _damaged(checkpoint: Checkpoint, on_bytes: Told) -> list[Problem]:
    """Parameters of any rank in the folder whose bytes changed."""
    others = [one.file for one in checkpoint.ignored if one.file.endswith(SUFFIX)]
    paths = [*(file.path for file in checkpoint.files), *(f"{checkpoint.root}/{o}" for o in others)]
    problems: list[Problem] = []
    for path in paths:
        one = open_checkpoint(path)
        try:
            found = digests(one, threads=effective_cores(), on_bytes=on_bytes)
        except (LoadError, OSError) as error:
            name = Path(path).name
            text = f"{shown(name)}: can't be read: {error}"
            problems.append(Problem(code="unreadable-file", file=name, message=text))
            continue
        problems += wrong_checksums(one, found)
    return problems
