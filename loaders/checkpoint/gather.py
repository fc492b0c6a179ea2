"""The headers of the chosen files, read one after another, and what they say together."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from loaders.checkpoint.listing import Item
from loaders.checkpoint.manifest import Problem, TensorSpec
from loaders.checkpoint.source import LOCAL, Source
from loaders.checkpoint.text import shown


@dataclass(slots=True, kw_only=True)
class Gathered:
    """`names_in` has the files whose contents are known, `first` the first file of each tensor."""

    tensors: list[TensorSpec] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    names_in: dict[str, set[str]] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, item: Item, tensors: Sequence[TensorSpec], problems: Sequence[Problem]) -> None:
        """One file's share. A file whose header can't be read at all tells nothing about its
        tensors, so that none of them is called absent; a tensor whose entry is faulty is there."""
        self.tensors += tensors
        self.problems += problems
        mentioned = {tensor.name for tensor in tensors}
        mentioned |= {problem.tensor for problem in problems if problem.tensor is not None}
        if mentioned or not any(problem.severity == "error" for problem in problems):
            self.names_in[item.name] = mentioned
        for tensor in mentioned:
            self.first.setdefault(tensor, item.name)


def gather(items: Sequence[Item], *, torch_files: bool, source: Source = LOCAL) -> Gathered:
    """Reads every file's header: torch files by their pickle, else safetensors."""
    gathered = Gathered()
    if not torch_files and items and sys.byteorder != "little":
        text = (
            "safetensors data is little-endian and this host is big-endian: the values would be "
            "wrong without swapping, which is not implemented"
        )
        gathered.problems.append(Problem(code="byte-order", message=text))
    if source.threads == 1:
        for item in items:
            gathered.add(item, *_read(item, torch_files, source))
        return gathered
    with ThreadPoolExecutor(max_workers=source.threads) as pool:
        found = pool.map(lambda item: _read(item, torch_files, source), items)
        for item, parts in zip(items, found, strict=True):
            gathered.add(item, *parts)
    return gathered


def _read(
    item: Item, torch_file: bool, source: Source
) -> tuple[Sequence[TensorSpec], Sequence[Problem]]:
    if torch_file:
        from loaders.checkpoint.torch_file import read_torch_file

        return read_torch_file(item.path, item.name)
    try:
        header = source.header(item)
    except OSError as error:
        text = f"{shown(item.name)}: can't be read: {error.strerror or error}"
        return [], [Problem(code="unreadable-file", file=item.name, message=text)]
    return header.tensors, header.problems
