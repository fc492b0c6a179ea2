"""The storages of a run: a folder or an address each, the name that records give it, and what is
known of it."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.ground.filesystems import coldness
from bench.ground.leftovers import DATA
from bench.ground.staging import there_before
from bench.host.facts import storage_facts
from bench.host.machine import virtual
from bench.measuring.deviceread import reader_is_charged
from bench.record.records import StorageRecord
from bench.settings import SettingsError, StorageChoice
from loaders.checkpoint.read import local_path
from loaders.store.address import HTTP, is_address, masked, scheme_of
from loaders.store.backend import imported
from loaders.store.errors import StoreError
from loaders.system.residency import UNKNOWN, Residency, choose_method


@dataclass(slots=True, kw_only=True)
class Storage:
    """A folder to measure on. `coldness` is in words; `cold_kind` as bench.ground.filesystems has
    it; `staged`, where the model is copied there first and measured too (--stage), what was in its
    data folder before."""

    label: str
    path: Path
    record: StorageRecord
    cold_kind: str
    coldness: str
    residency: Residency = UNKNOWN
    charged: bool | None = None
    staged: frozenset[str] | None = None

    @property
    def data(self) -> Path:
        return self.path / DATA

    def examine(self, file: Path) -> None:
        """Finds out, on a file there, how its residency can be known and whether fetched bytes are
        charged to the reader. Disturbs the file's cached pages."""
        self.residency = choose_method(file)
        self.charged = reader_is_charged(file, self.residency)


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A model's address, to measure there. `address` may hold secrets and goes into no record."""

    label: str
    address: str
    record: StorageRecord
    coldness: str
    cold_kind: str = "server-cache"
    residency: Residency = UNKNOWN
    charged: bool | None = None


Place = Storage | Store


def name_storages(choices: tuple[StorageChoice, ...], default: Path | str) -> list[Place]:
    """The chosen folders and addresses (or the default one, an address where the model has one)
    with their labels: those given, else the file system's or scheme's name, numbered where two have
    the same. SettingsError for what is no folder, and for an address that isn't the model's.
    """
    named: list[Place] = []
    given = {choice.label for choice in choices if choice.label}
    for choice in choices or (StorageChoice(label=None, path=str(default)),):
        if is_address(choice.path):
            named.append(_store(choice, default, given | {storage.label for storage in named}))
            continue
        taken = given | {storage.label for storage in named}
        named.append(_storage(_folder(choice.path, "--storage"), choice.label, taken))
    return named


def staged_place(text: str, places: Sequence[Place], caches: Sequence[str]) -> Storage:
    """The folder of --stage as one more storage. SettingsError for what is no folder that can be
    written, is measured already, or would be compared with nothing."""
    if is_address(text):
        raise SettingsError(f"--stage={masked(text)}: expected a folder to copy to")
    path = _folder(text, "--stage")
    if not os.access(path, os.W_OK | os.X_OK):
        raise SettingsError(f"--stage={text}: can't be written to; name another folder")
    if any(isinstance(place, Storage) and place.path == path for place in places):
        raise SettingsError(
            f"--stage={text}: is measured as a storage already; name another folder"
        )
    made = _storage(path, None, {place.label for place in places}, before="staged-")
    needed = "warm" if made.cold_kind == "memory" else "cold"
    if needed not in caches:
        raise SettingsError(f"--stage={text}: loads from there are {needed}; leave --cache out")
    if "cold" not in caches and not any(isinstance(place, Store) for place in places):
        raise SettingsError("--stage: is held against cold loads; leave --cache out")
    made.staged = there_before(made.data)
    return made


def _storage(path: Path, given: str | None, taken: Collection[str], before: str = "") -> Storage:
    facts: dict[str, Any] = storage_facts(path, virtual())
    fs_type = str(facts["fs_type"] or "unknown")
    label = given or _free_label(before + fs_type, set(taken))
    cold = coldness(fs_type, device=_disk(facts), virtual=virtual())
    return Storage(
        label=label,
        path=path,
        record=StorageRecord(
            label=label,
            file_system=facts["fs_type"],
            mount=facts["mount_point"],
            device=_disk(facts),
        ),
        cold_kind=cold.kind,
        coldness=cold.words,
    )


def _store(choice: StorageChoice, default: Path | str, taken: set[str]) -> Store:
    address = choice.path
    try:
        scheme = scheme_of(address)
        if scheme not in HTTP:
            imported(scheme)
    except (ValueError, StoreError) as error:
        raise SettingsError(str(error)) from error
    if not isinstance(default, str) or not _holds(address, default):
        raise SettingsError(
            f"--storage={masked(address)}: a store is measured with --model at it, nothing is "
            f"written there: --model={masked(address)}"
        )
    label = choice.label or _free_label(scheme, taken)
    return Store(
        label=label,
        address=default,
        record=StorageRecord(label=label, file_system=scheme),
        coldness=(
            "files of this host, through fsspec; they aren't made cold"
            if scheme in ("file", "local")
            else "cold can't be had: nothing is cached here, but what the store keeps is beyond "
            "this host"
        ),
    )


def _holds(folder: str, model: str) -> bool:
    """Whether a model's address is that one, or lies below it."""
    above, below = (text.partition("?")[0].rstrip("/") + "/" for text in (folder, model))
    return below.startswith(above)


def default_place(model: str, shapes: Collection[str]) -> Path | str:
    """Where the model lies: its address, or the folder where its weights do if it is a folder of
    links; for built-in shapes, here; for the Hub's models, its cache."""
    if is_address(model):
        return model
    place = Path(local_path(model))
    if place.is_dir():
        return _largest_file(place).resolve().parent
    if place.is_file():
        return place.resolve().parent
    if model in shapes or "/" not in model:
        return Path.cwd()
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    return next(folder for folder in [cache, *cache.parents] if folder.is_dir())


def _largest_file(folder: Path) -> Path:
    """The largest file in the folder: weights, if it holds any. The folder's marker if none."""
    files = [path for path in folder.iterdir() if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size, default=folder / "none")


def _folder(text: str, option: str) -> Path:
    """The folder that was named, links followed. SettingsError if it isn't one."""
    path = Path(local_path(text))
    if not path.is_dir():
        found = "a file" if path.is_file() else "nothing"
        raise SettingsError(f"{option}={text}: expected a folder, found {found} there")
    return path.resolve()


def _free_label(fs_type: str, taken: set[str]) -> str:
    number = 1
    while (label := fs_type if number == 1 else f"{fs_type}-{number}") in taken:
        number += 1
    return label


def _disk(facts: dict[str, Any]) -> str | None:
    return str(facts["block"]["disk"]) if facts["block"] else None
