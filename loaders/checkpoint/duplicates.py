"""The same tensor in more than one file: one loader crashes on it, another lets the last win."""

from __future__ import annotations

from collections.abc import Sequence

from loaders.checkpoint.manifest import Problem, TensorSpec
from loaders.checkpoint.names import shard_of
from loaders.checkpoint.text import count, listed, quoted, shown


def duplicates(tensors: Sequence[TensorSpec]) -> list[Problem]:
    """A problem for each name in two files; one only (`two-copies`) where a whole file or shard
    set repeats what another one holds."""
    files_of: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    group_of = {file: _group(file) for file in {tensor.file for tensor in tensors}}
    for tensor in tensors:
        files = files_of.setdefault(tensor.name, [])
        if tensor.file not in files:
            files.append(tensor.file)
            group = group_of[tensor.file]
            sizes[group] = sizes.get(group, 0) + 1
    shared: dict[tuple[str, str], list[str]] = {}
    problems = []
    for name, files in files_of.items():
        if len(files) == 1:
            continue
        groups = list(dict.fromkeys(group_of[file] for file in files))
        if len(groups) < len(files):  # twice within one set: never a copy of the whole
            problems.append(_twice(name, files))
            continue
        pair = (groups[0], groups[1])
        shared.setdefault(pair, []).append(name)
    for (first, second), names in shared.items():
        if len(names) == min(sizes[first], sizes[second]) and len(names) > 1:
            text = (
                f"two copies of the weights: {shown(first)} and {shown(second)} hold the same "
                f"{count(len(names), 'tensor')} ({listed(names, 3)}); keep one of them, or give "
                "the path of a file"
            )
            problems.append(Problem(code="two-copies", file=second, tensor=names[0], message=text))
        else:
            problems += [_twice(name, files_of[name]) for name in names]
    return problems


def _group(file: str) -> str:
    shard = shard_of(file)
    return file if shard is None else str(shard[0])


def _twice(name: str, files: Sequence[str]) -> Problem:
    text = (
        f"tensor {quoted(name)} is in {count(len(files), 'file')}: {listed(files)}; a loader would "
        "crash or let the last one win; write the checkpoint again without the repetition"
    )
    return Problem(code="duplicate-tensor", file=files[-1], tensor=name, message=text)
