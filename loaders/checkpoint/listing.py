"""What lies in a folder: names, sizes, kinds. Reads no file."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from loaders.checkpoint.manifest import Problem, UnreadableError
from loaders.checkpoint.regular import kind
from loaders.checkpoint.text import shown

Kind = Literal["file", "folder", "dangling", "special", "unreadable"]
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One entry of a folder, links followed. `size` and `allocated` (bytes that take up storage)
    are those of a link's target; `note` is a dangling link's target, or why it can't be used."""

    name: str
    path: str
    kind: Kind
    size: int = 0
    allocated: int = 0
    note: str = ""

    def problem(self) -> Problem | None:
        """Why this entry can't be read as a file, or None if it can."""
        where = shown(self.name)
        if self.kind == "file":
            return None
        if self.kind == "dangling":
            return Problem(
                code="blob-missing",
                file=self.name,
                message=f"{where}: blob missing: {shown(self.note)} (the link leads nowhere); "
                "download it again, or make the folder with the blobs available as well",
            )
        if self.kind == "unreadable":
            text = f"{where}: can't be examined: {shown(self.note)}"
            return Problem(code="unreadable-file", file=self.name, message=text)
        text = f"{where}: expected a file, found {self.note or 'a folder'}"
        return Problem(code="not-a-file", file=self.name, message=text)


def natural(name: str) -> tuple[object, ...]:
    """Sort key that puts shard 2 before shard 10 (vLLM 0.16 and later order files so)."""
    parts = _DIGITS.split(name)
    return tuple((int(part), part) if i % 2 else part for i, part in enumerate(parts))


def list_folder(folder: str) -> list[Item]:
    """The entries of a folder in natural order. UnreadableError if it can't be listed."""
    try:
        with os.scandir(folder) as entries:
            found = [_item(entry) for entry in entries]
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnreadableError(f"{shown(folder)}: the folder can't be listed: {reason}") from error
    return sorted(found, key=lambda item: natural(item.name))


def item_at(path: str, name: str) -> Item:
    """One path as an Item."""
    try:
        return _from_stat(name, path, Path(path).stat())
    except OSError as error:
        return _failed(name, path, Path(path).is_symlink(), error)


def _item(entry: os.DirEntry[str]) -> Item:
    try:
        return _from_stat(entry.name, entry.path, entry.stat())
    except OSError as error:
        return _failed(entry.name, entry.path, entry.is_symlink(), error)


def _from_stat(name: str, path: str, info: os.stat_result) -> Item:
    if stat.S_ISDIR(info.st_mode):
        return Item(name=name, path=path, kind="folder")
    if not stat.S_ISREG(info.st_mode):
        return Item(name=name, path=path, kind="special", note=kind(info.st_mode))
    allocated = info.st_blocks * 512
    return Item(name=name, path=path, kind="file", size=info.st_size, allocated=allocated)


def _failed(name: str, path: str, link: bool, error: OSError) -> Item:
    if link and not isinstance(error, PermissionError):
        target = str(Path(path).readlink())
        return Item(name=name, path=path, kind="dangling", note=target)
    return Item(name=name, path=path, kind="unreadable", note=error.strerror or str(error))
