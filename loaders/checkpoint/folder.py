"""A folder, or one file, turned into the parts of a manifest.

Problem codes made here: no-tensors, single-shard, index-orphan, config-invalid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from loaders.checkpoint import index as indexes
from loaders.checkpoint import names
from loaders.checkpoint.duplicates import duplicates
from loaders.checkpoint.gather import Gathered, gather
from loaders.checkpoint.index import Index
from loaders.checkpoint.listing import Item, item_at, list_folder
from loaders.checkpoint.manifest import (
    Format,
    Ignored,
    NoWeightsError,
    Problem,
    TensorSpec,
    UnreadableError,
    WeightFile,
)
from loaders.checkpoint.nothing import nothing_here
from loaders.checkpoint.regular import opened, read_at
from loaders.checkpoint.safetensors_header import MAX_HEADER
from loaders.checkpoint.select import Selection, candidates, numbering, select, sparse
from loaders.checkpoint.snapshot_file import read_snapshots
from loaders.checkpoint.source import LOCAL, Source
from loaders.checkpoint.tensorizer_file import TENSORS, read_tensors_file
from loaders.checkpoint.text import count, shown
from loaders.snapshot.format import SUFFIX

Asked = Literal["auto", "safetensors", "pt", "npcache", "tensorizer", "snapshot"]
_SUFFIXES: dict[str, tuple[str, ...]] = {
    "auto": names.PATTERNS,
    "safetensors": (".safetensors",),
    "pt": (".bin", ".pt"),
    "npcache": (),
    "tensorizer": (),
    "snapshot": (),
}
_TORCH_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".tar")
_NPCACHE_LIST = ("np", "weight_names.json")
# A torch file that loads but holds no dict of tensors, whatever its name: not the model's weights.
_NO_WEIGHTS = {"no-weight-dict", "no-tensors", "not-weights"}
_PROPER = ("pytorch_model", "model", "consolidated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The parts of a manifest. `items` are the weight files as they were listed."""

    root: str
    format: Format
    items: tuple[Item, ...]
    files: tuple[WeightFile, ...]
    tensors: tuple[TensorSpec, ...]
    config: Mapping[str, Any] | None
    ignored: tuple[Ignored, ...]
    problems: tuple[Problem, ...]
    facts: Mapping[str, Any] | None = None


def read_folder(folder: str, asked: Asked) -> Found:
    """What a folder holds in the format asked for. NoWeightsError, UnreadableError."""
    items = list_folder(folder)
    suffix = next((end for end in _SUFFIXES[asked] if candidates(items, end)), None)
    if suffix is None:
        if asked in ("auto", "npcache") and Path(folder, *_NPCACHE_LIST).is_file():
            return _npcache(folder, items)
        serialized = [item for item in items if item.name.endswith(TENSORS)]
        if asked in ("auto", "tensorizer") and serialized:
            return _tensorizer(folder, serialized, items)
        snapshots = [item for item in items if item.name.endswith(SUFFIX)]
        if asked in ("auto", "snapshot") and snapshots:
            return _snapshot(folder, snapshots, items)
        raise nothing_here(folder, items, asked)
    return read_items(folder, items, suffix, LOCAL)


def read_items(root: str, items: Sequence[Item], suffix: str, source: Source) -> Found:
    """What a folder's entries hold, weights being those with that suffix."""
    config, problems = _config(items, source)
    index, faults = _index(items, suffix, source)
    problems += faults
    selection = select(items, suffix, index)
    problems += selection.problems
    gathered = gather(selection.files, torch_files=suffix != ".safetensors", source=source)
    chosen, ignored = list(selection.files), list(selection.ignored)
    if index is not None:
        chosen, gathered, absence = _stale(index, items, selection, gathered, suffix, source)
        problems += absence
        taken = {item.name for item in chosen}
        ignored = [one for one in ignored if one.file not in taken]
    elif suffix != ".safetensors":
        chosen, gathered, left_out = _without_strangers(chosen, gathered)
        ignored += left_out
    if suffix != ".safetensors":
        problems += _orphans(items)
    problems += gathered.problems
    problems += _together(gathered, index, config, problems)
    return Found(
        root=root,
        format="safetensors" if suffix == ".safetensors" else "pt",
        items=tuple(chosen),
        files=_files(chosen),
        tensors=tuple(gathered.tensors),
        config=config,
        ignored=tuple(ignored),
        problems=tuple(problems),
    )


def read_single(path: str, asked: Asked) -> Found:
    """What one file holds. NoWeightsError if it isn't of the format; UnreadableError."""
    folder, name = str(Path(path).parent), Path(path).name
    item = item_at(path, name)
    if asked == "tensorizer" or (asked == "auto" and name.endswith(TENSORS)):
        return _tensorizer(folder, [item], [item_at(f"{folder}/config.json", "config.json")])
    if asked == "snapshot" or (asked == "auto" and name.endswith(SUFFIX)):
        return _snapshot(folder, [item], [item_at(f"{folder}/config.json", "config.json")])
    if (rank := names.rank_of(name)) is not None and name.endswith(".safetensors"):
        # One rank's state is cut into parts by size alone: all of them are meant.
        mine = [one for one in list_folder(folder) if names.rank_of(one.name) == rank]
        config = item_at(f"{folder}/config.json", "config.json")
        items = [*mine, *([config] if config.kind == "file" else [])]
        return read_items(folder, items, ".safetensors", LOCAL)
    beside = item_at(f"{folder}/config.json", "config.json")
    return read_item(folder, item, beside, torch_file=_is_torch(path, name, asked), source=LOCAL)


def read_item(root: str, item: Item, beside: Item, *, torch_file: bool, source: Source) -> Found:
    """What one file holds, with the config.json beside it. UnreadableError."""
    name = item.name
    gathered = gather([item], torch_files=torch_file, source=source)
    for problem in gathered.problems:
        if problem.code == "unreadable-file":
            raise UnreadableError(problem.message)
    problems = [*gathered.problems]
    if (hole := sparse(item)) is not None:
        problems.append(hole)
    shard = names.shard_of(name)
    if shard is not None and shard[0].total > 1:
        text = (
            f"{shown(name)} is one shard of {shard[0].total} and only it is read; give the folder "
            "for the whole checkpoint"
        )
        problems.append(Problem(code="single-shard", file=name, message=text, severity="warning"))
    config, faults = _config([beside] if beside.kind == "file" else [], source)
    problems += faults
    problems += _together(gathered, None, config, problems)
    return Found(
        root=root,
        format="pt" if torch_file else "safetensors",
        items=(item,),
        files=_files([item]),
        tensors=tuple(gathered.tensors),
        config=config,
        ignored=(),
        problems=tuple(problems),
    )


def _npcache(folder: str, items: Sequence[Item]) -> Found:
    from loaders.checkpoint.npcache_dir import read_npcache

    files, tensors, faults = read_npcache(folder)
    config, problems = _config(items, LOCAL)
    return Found(
        root=folder,
        format="npcache",
        items=tuple(item_at(file.path, file.name) for file in files),
        files=tuple(files),
        tensors=tuple(tensors),
        config=config,
        ignored=(),
        problems=(*problems, *faults),
    )


def _tensorizer(folder: str, serialized: Sequence[Item], beside: Sequence[Item]) -> Found:
    config, problems = _config([item for item in beside if item.kind == "file"], LOCAL)
    tensors: list[TensorSpec] = []
    for item in serialized:
        fault = item.problem()
        found, faults = ([], [fault]) if fault else read_tensors_file(item.path, item.name)
        tensors += found
        problems += faults
    return Found(
        root=folder,
        format="tensorizer",
        items=tuple(serialized),
        files=_files(serialized),
        tensors=tuple(tensors),
        config=config,
        ignored=(),
        problems=(*problems, *duplicates(tensors)),
    )


def _snapshot(folder: str, snapshots: Sequence[Item], beside: Sequence[Item]) -> Found:
    config, problems = _config([item for item in beside if item.kind == "file"], LOCAL)
    header, tensors, items, ignored, faults = read_snapshots(snapshots)
    holes = [hole for item in snapshots if (hole := sparse(item)) is not None]
    return Found(
        root=folder,
        format="snapshot",
        items=tuple(items),
        files=_files(items),
        tensors=tuple(tensors),
        config=config,
        ignored=tuple(ignored),
        problems=(*problems, *faults, *holes),
        facts=header.facts() if header is not None else None,
    )


def _files(items: Sequence[Item]) -> tuple[WeightFile, ...]:
    return tuple(WeightFile(name=item.name, path=item.path, size=item.size) for item in items)


def _config(items: Sequence[Item], source: Source) -> tuple[dict[str, Any] | None, list[Problem]]:
    """config.json; what is wrong with it is a warning, because the weights can be read without."""
    item = next((item for item in items if item.name == "config.json"), None)
    if item is None:
        return None, []
    fault = item.problem()
    value, problems = (None, [fault]) if fault else source.json(item)
    if not problems and not isinstance(value, dict):
        problems = [Problem(code="", file=item.name, message="config.json: is not a JSON object")]
    faults = [replace(one, code="config-invalid", severity="warning") for one in problems]
    return (value if isinstance(value, dict) else None), faults


def _index(
    items: Sequence[Item], suffix: str, source: Source
) -> tuple[Index | None, list[Problem]]:
    """The index that decides. One of a non-standard name counts only if it names every weight
    file: engines don't know it, it may belong to a variant that lies beside."""
    by_name = {item.name: item for item in items}
    found = names.index_names(by_name, suffix)
    if not found:
        return None, []
    standard = found[0] in names.STANDARD_INDEX[suffix]
    if not standard and len(found) > 1:
        return None, []
    item = by_name[found[0]]
    fault = item.problem()
    if fault is not None:
        return None, [fault]
    root, problems = source.json(item)
    if problems:
        return None, problems
    index, problems = indexes.parse_index(root, item.name)
    if index is not None and not standard:
        unnamed = [one for one in candidates(items, suffix) if one.name not in index.files]
        if unnamed:
            return None, []
    return index, problems


def _stale(
    index: Index,
    items: Sequence[Item],
    selection: Selection,
    gathered: Gathered,
    suffix: str,
    source: Source,
) -> tuple[list[Item], Gathered, list[Problem]]:
    """Where the index names absent files: looks for their tensors in the files that it doesn't
    name, and takes those in that hold some."""
    chosen = list(selection.files)
    absent = indexes.absent_files(index, (item.name for item in items))
    if not absent:
        return chosen, gathered, []
    spare = gather(selection.spare, torch_files=suffix != ".safetensors", source=source)
    wanted = set(indexes.tensors_placed_in(index, absent)) - gathered.first.keys()
    # A file without any readable tensor may be the very one that is looked for: keep its faults.
    useful = {
        item.name
        for item in selection.spare
        if wanted & spare.names_in.get(item.name, set()) or item.name not in spare.names_in
    }
    taken = [item for item in selection.spare if item.name in useful]
    order = {item.name: place for place, item in enumerate(items)}
    chosen = sorted([*chosen, *taken], key=lambda item: order[item.name])
    if taken:
        gathered = gather(chosen, torch_files=suffix != ".safetensors", source=source)
    problems = [indexes.absence(index, absent, gathered.first)]
    if taken:
        problems += numbering([item.name for item in chosen])
    return chosen, gathered, problems


def _without_strangers(
    chosen: list[Item], gathered: Gathered
) -> tuple[list[Item], Gathered, list[Ignored]]:
    """Leaves out torch files that hold something else than a dict of tensors (arguments, sampler
    states), where other files do hold weights and the name doesn't claim it."""
    if not gathered.tensors:
        return chosen, gathered, []
    reasons: dict[str, str] = {}
    full = {tensor.file for tensor in gathered.tensors}
    for problem in gathered.problems:
        name = problem.file
        if name is None or name in full or problem.code not in _NO_WEIGHTS:
            continue
        if names.shard_of(name) is None and not name.startswith(_PROPER):
            reasons[name] = problem.message.removeprefix(f"{name}: ")
    gathered.problems = [one for one in gathered.problems if one.file not in reasons]
    left_out = [Ignored(file=name, reason=reason) for name, reason in reasons.items()]
    return [item for item in chosen if item.name not in reasons], gathered, left_out


def _orphans(items: Sequence[Item]) -> list[Problem]:
    """A safetensors index beside torch files: what is measured is not what the index speaks of."""
    found = names.index_names([item.name for item in items], ".safetensors")
    text = "there are no *.safetensors files beside this index: the torch files are read instead"
    return [
        Problem(
            code="index-orphan", file=name, message=f"{shown(name)}: {text}", severity="warning"
        )
        for name in found
    ]


def _together(
    gathered: Gathered,
    index: Index | None,
    config: Mapping[str, Any] | None,
    so_far: Sequence[Problem],
) -> list[Problem]:
    """What only shows when all headers are known."""
    problems = duplicates(gathered.tensors)
    if any(one.code == "two-copies" for one in so_far):  # told by the names already
        problems = [one for one in problems if one.code != "two-copies"]
    if index is not None:
        problems += indexes.against_headers(index, gathered.first, gathered.names_in, config)
    broken = any(one.severity == "error" for one in [*so_far, *problems])
    if not gathered.tensors and not broken:
        text = f"{count(len(gathered.names_in), 'file')} without a single tensor in all"
        problems.append(Problem(code="no-tensors", message=text))
    if index is not None and not broken:
        each = sum(tensor.nbytes for tensor in gathered.tensors)
        shared = sum(
            {
                (tensor.file, tensor.storage or tensor.name): tensor.nbytes
                for tensor in gathered.tensors
            }.values()
        )
        problems += indexes.against_total(index, {each, shared})
    return problems


def _is_torch(path: str, name: str, asked: Asked) -> bool:
    if asked == "npcache":
        raise UnreadableError(f"{shown(path)}: an npcache is a folder, this is a file")
    if asked != "auto":
        return asked == "pt"
    if name.endswith(".safetensors"):
        return False
    if name.lower().endswith(_TORCH_SUFFIXES):
        return True
    try:
        with opened(path) as (fd, size):
            head = read_at(fd, 0, 9)
    except OSError as error:
        raise UnreadableError(f"{shown(path)}: {error.strerror or error}") from error
    if head.startswith((b"PK\x03\x04", b"\x80\x02")):
        return True
    length = int.from_bytes(head[:8], "little")
    if head[8:] in (b"{", b" ") and length <= min(MAX_HEADER, size - 8):
        return False
    raise NoWeightsError(
        f"{shown(path)}: not a weight file: neither its name nor its first bytes are those of "
        "safetensors or of a torch file"
    )
