"""What the samples of a run stand on: the checkpoints that lie ready, and what was seen of the
storages. Made by bench.ground.groundwork."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bench.ground.prepare import Prepared
from loaders import registry
from loaders.checkpoint.manifest import Format

FORMATS: tuple[Format, ...] = ("safetensors", "pt", "npcache", "tensorizer", "snapshot")


@dataclass(slots=True, kw_only=True)
class Ground:
    """What the samples stand on. `size` is the model's payload in bytes; `prepared` by storage
    label and format; `looks` (bench.ground.probe.first_look) by label of each folder, `stores`
    the labels of the addresses; `main` is the format that ceilings read."""

    model: str
    size: int = 0
    size_text: str = ""
    dtype: str = ""
    main: Format = "safetensors"
    prepared: dict[tuple[str, str], Prepared] = field(default_factory=dict)
    looks: dict[str, dict[str, Any]] = field(default_factory=dict)
    stores: frozenset[str] = frozenset()
    notes: list[str] = field(default_factory=list)
    expected_seconds: float = 0.0
    bounded: bool = False
    """Whether the budget ends the run: it does where the data is made up to fit it."""


def problems_of(loader: str, ground: Ground, label: str) -> str | None:
    """Why a loader can't measure what lies on a storage, or None if it can."""
    entry = registry.entries()[loader]
    reason = registry.unavailable(entry)
    if reason is not None:
        return reason
    assert entry.cls is not None
    if entry.cls.place == "address" and label not in ground.stores:
        return "reads addresses such as s3://bucket/folder; this storage is a folder"
    if entry.cls.place == "file" and label in ground.stores:
        return "reads folders of this host; name one with --storage= to have the model copied there"
    if entry.cls.ownership == "device":
        return "puts its tensors on a device: nothing of it ends in host memory"
    if entry.cls.formats and not _readable(entry.cls.formats, ground, label):
        return f"reads {' or '.join(sorted(entry.cls.formats))}; this model is {ground.main}"
    return None


def prepared_for(loader: str, ground: Ground, label: str) -> Prepared:
    """The checkpoint that the loader reads on that storage."""
    cls = registry.get(loader)
    names = _readable(cls.formats, ground, label) if cls.formats else [ground.main]
    return ground.prepared[label, names[0]]


def _readable(formats: frozenset[str], ground: Ground, label: str) -> list[str]:
    return [name for name in FORMATS if name in formats and (label, name) in ground.prepared]
