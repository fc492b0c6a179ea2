"""Where the small parts of a checkpoint are read from: a folder here, or a store elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from loaders.checkpoint.index import read_json
from loaders.checkpoint.listing import Item
from loaders.checkpoint.manifest import Problem
from loaders.checkpoint.safetensors_header import Header, read_header


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """`json` gives a small JSON file's value, or None and what is wrong; `header` a safetensors
    file's header, OSError if it can't be had. `threads`: how many headers are asked for at a time;
    1 unless the answers take long to come."""

    json: Callable[[Item], tuple[Any, list[Problem]]]
    header: Callable[[Item], Header]
    threads: int = 1


LOCAL: Final = Source(
    json=lambda item: read_json(item.path, item.name),
    header=lambda item: read_header(item.path, item.name),
)
