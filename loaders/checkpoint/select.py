"""Which files of a folder are the weights, which are left out and why.

Pure functions on a listing. An index, where there is one, decides: files that it doesn't name are
another copy or don't belong (vLLM 0.33, filter_duplicate_safetensors_files). Without an index
every match counts, and then two copies of the weights are a fault, because an engine would load
both.

Problem codes: shards-missing, shard-number, two-copies, rank-sharded, incomplete-download,
blob-missing, not-a-file, unreadable-file, sparse-file, index-orphan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loaders.checkpoint import names
from loaders.checkpoint.index import Index
from loaders.checkpoint.listing import Item
from loaders.checkpoint.manifest import Ignored, Problem
from loaders.checkpoint.names import ShardSet
from loaders.checkpoint.text import count, listed, shown

_SPARSE = 1 << 20  # below this, small files kept inside an inode look sparse


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """`files` are read; `spare` are weights by name that the index doesn't name, looked into only
    when files that it does name are absent."""

    files: tuple[Item, ...]
    spare: tuple[Item, ...]
    ignored: tuple[Ignored, ...]
    problems: tuple[Problem, ...]


def candidates(items: Sequence[Item], suffix: str) -> list[Item]:
    """The files that are weights by their names, for one suffix."""
    return [
        item
        for item in items
        if names.suffix_of(item.name) == suffix and names.why_not_weights(item.name) is None
    ]


def select(items: Sequence[Item], suffix: str, index: Index | None) -> Selection:
    """The weights with that suffix among a folder's entries. `index` is None where there is none
    or it can't be used."""
    found = candidates(items, suffix)
    spare: list[Item] = []
    if index is not None:
        named = index.files
        spare = [item for item in found if item.name not in named]
        found = [item for item in items if item.name in named]
    problems: list[Problem] = []
    for item in found:
        fault = item.problem() or sparse(item)
        if fault is not None:
            problems.append(fault)
    if index is None:
        problems += numbering([item.name for item in found])
        problems += copies([item.name for item in found])
    problems += unfinished(items)
    files = tuple(item for item in found if item.kind == "file")
    taken = {item.name for item in [*found, *spare]}
    ignored = [_ignored(item, suffix) for item in items if item.name not in taken]
    if index is not None:
        ignored += [not_named(item.name, index.name) for item in spare]
    return Selection(
        files=files,
        spare=tuple(item for item in spare if item.kind == "file"),
        ignored=tuple(one for one in ignored if one is not None),
        problems=tuple(problems),
    )


def not_named(name: str, index: str) -> Ignored:
    """The reason for a file that the index leaves out."""
    what = "another copy (Mistral's layout): " if names.is_consolidated(name) else ""
    return Ignored(file=name, reason=f"{what}not named in {shown(index)}")


def numbering(found: Sequence[str]) -> list[Problem]:
    """Shard sets with numbers missing, and numbers beyond the total."""
    problems = []
    for group, present in _sets(found).items():
        lacking, first = names.missing_numbers(group.total, present)
        if lacking:
            more = f" and {lacking - len(first):,} more" if lacking > len(first) else ""
            text = (
                f"{shown(group)}: expected {count(group.total, 'shard')}, found {len(present)}; "
                f"missing: {', '.join(map(str, first))}{more}; copy or download them"
            )
            problems.append(Problem(code="shards-missing", message=text))
        beyond = sorted(number for number in present if number > group.total)
        if beyond:
            text = f"{shown(group)}: shard {listed(beyond)} of a set of {group.total}"
            problems.append(Problem(code="shard-number", message=text))
    return problems


def copies(found: Sequence[str]) -> list[Problem]:
    """Names that tell two copies of the weights (what the headers tell is checked later)."""
    sets = _sets(found)
    single = [name for name in found if names.shard_of(name) is None]
    ranks = {names.rank_of(name) for name in found} - {None}
    if len(ranks) > 1:
        text = (
            f"pre-sharded for {len(ranks)} ranks (sharded_state): each rank's files hold the same "
            "names with other slices; give the path of one of a rank's files instead"
        )
        return [Problem(code="rank-sharded", message=text)]
    groups = [str(group) for group in sets]
    problems: list[Problem] = []

    def twice(first: str, second: str) -> None:
        text = (
            f"two copies of the weights: {shown(first)} and {shown(second)}, and no index says "
            "which one counts; keep one of them, or give the path of a file"
        )
        problems.append(Problem(code="two-copies", message=text))

    consolidated = [name for name in [*groups, *single] if names.is_consolidated(name)]
    others = [name for name in [*groups, *single] if not names.is_consolidated(name)]
    if consolidated and others:
        twice(consolidated[0], others[0])
    for position, group in enumerate(sets):
        for other in list(sets)[position + 1 :]:
            same_set = (group.stem, group.rest) == (other.stem, other.rest)
            if same_set and group.total != other.total:
                twice(str(group), str(other))
        for name in single:
            if name == group.stem.rstrip("-_.") + group.rest:
                twice(name, str(group))
    return problems


def unfinished(items: Sequence[Item]) -> list[Problem]:
    """Downloads that didn't end. A leftover beside its finished file is a warning; aria2 keeps its
    control file only while the file beside it is unfinished."""
    present = {item.name for item in items if item.kind == "file"}
    problems = []
    for item in items:
        target = names.partial_of(item.name)
        if target is None or item.kind != "file":
            continue
        if names.looks_like_weights(target) or "." not in target:
            leftover = target in present and not item.name.lower().endswith(".aria2")
            advice = "download it again"
            if leftover:
                advice = "the finished file lies beside it, so it can be deleted"
            text = f"{shown(item.name)}: an unfinished download ({count(item.size, 'byte')})"
            problems.append(
                Problem(
                    code="incomplete-download",
                    file=item.name,
                    message=f"{text}; {advice}",
                    severity="warning" if leftover else "error",
                )
            )
    return problems


def sparse(item: Item) -> Problem | None:
    """A file with holes: an unfinished download, or one whose rate would be too good to be true,
    because holes are not read from storage."""
    if not 0 < item.allocated < item.size - max(_SPARSE, item.size // 10):
        return None
    text = (
        f"{shown(item.name)}: only {item.allocated:,} of {item.size:,} bytes take up storage "
        "(holes from an unfinished download, or a compressing file system): reading it is no "
        "measure of this storage"
    )
    return Problem(code="sparse-file", file=item.name, message=text, severity="warning")


def _sets(found: Sequence[str]) -> dict[ShardSet, set[int]]:
    sets: dict[ShardSet, set[int]] = {}
    for name in found:
        shard = names.shard_of(name)
        if shard is not None:
            sets.setdefault(shard[0], set()).add(shard[1])
    return sets


def _ignored(item: Item, suffix: str) -> Ignored | None:
    """Why an entry is not read; None for what nobody would take for weights."""
    name = item.name
    if item.kind == "folder":
        reason = _FOLDERS.get(name)
        return Ignored(file=f"{name}/", reason=reason) if reason else None
    if not names.looks_like_weights(name):
        return None
    own = names.suffix_of(name)
    if names.partial_of(name) is not None:
        reason = "an unfinished download"
    elif name.startswith("."):
        reason = "a hidden file"
    elif own is None:
        reason = "not a format that is read from a folder"
        if any(name.lower().endswith(pattern) for pattern in names.PATTERNS):
            reason = "its suffix is not in lower case: engines don't match it"
    elif (why := names.why_not_weights(name)) is not None:
        reason = why
    elif own != suffix:
        reason = f"the *{suffix} files are read instead"
    else:
        reason = "not selected"
    return Ignored(file=name, reason=reason)


_FOLDERS = {
    "original": "another copy (the publisher's own format)",
    "np": "an npcache: read with format npcache",
    "onnx": "another format",
    "openvino": "another format",
    "gguf": "another format",
    "metal": "another format",
    "coreml": "another format",
}
