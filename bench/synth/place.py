"""A new folder that appears whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from bench.ground.leftovers import held, partial_of, remove_leftovers
from bench.sizes import format_size
from loaders.system.space import free_bytes

_OUT = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, None}  # of space


class MakeError(Exception):
    """The folder could not be written; nothing of it was left behind."""


class PlaceError(MakeError):
    """It can't be there: something is there already, or the folder can't be made."""


@contextlib.contextmanager
def new_folder(
    dest: str | os.PathLike[str], need: int, free: Callable[[Path], int | None] = free_bytes
) -> Iterator[Path]:
    """A hidden folder beside `dest` to write into; it becomes `dest` when the block ends well.

    Missing parents are made; what a killed process left of such a folder is removed. If the block
    fails or is interrupted, all that was made is removed. PlaceError if there is a `dest` already
    or it can't be made; MakeError if less than `need` bytes are free, and for every OSError while
    writing.
    """
    _refuse_existing(Path(dest))  # before links are followed: a dangling one is something, too
    target = Path(dest).resolve()
    partial = partial_of(target)
    remove_leftovers(target.parent, target.name)
    _check_space(target, need, free)
    made: list[Path] = []
    try:
        try:
            made = _make(partial)
        except OSError as error:
            kind = MakeError if error.errno in _OUT else PlaceError
            reason = error.strerror or error
            raise kind(f"{target}: the folder can't be made there ({reason})") from error
        try:
            with held(partial):
                yield partial
                _sync_folder(partial)
                _refuse_existing(target)
                partial.rename(target)
            _sync_folder(target.parent)
        except OSError as error:
            raise MakeError(_while_writing(target, error)) from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        for folder in reversed(made):
            with contextlib.suppress(OSError):  # another process may have put something there
                folder.rmdir()
        raise


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """Writes a new JSON file and syncs it."""
    with path.open("x", encoding="utf-8") as out:
        json.dump(value, out, indent=2)
        out.write("\n")
        out.flush()
        os.fsync(out.fileno())


def _refuse_existing(target: Path) -> None:
    # Asked by name, so that a dangling link counts too. os.rename replaces an empty folder.
    if os.path.lexists(target):
        raise PlaceError(
            f"{target} exists already and is never overwritten: remove it, or name a folder that "
            "isn't there yet (it may lie in one that is)"
        )


def _check_space(target: Path, need: int, free: Callable[[Path], int | None]) -> None:
    near = next(folder for folder in target.parents if folder.exists())
    if not near.is_dir():
        raise PlaceError(f"{target}: the folder can't be made there ({near} is not a folder)")
    if not os.access(near, os.W_OK | os.X_OK):
        raise PlaceError(f"{target}: the folder can't be made there ({near} is not writable)")
    have = free(near)
    if have is not None and have < need:
        raise MakeError(
            f"{target}: needs {format_size(need)} ({need} bytes), and {format_size(have)} ({have} "
            f"bytes) are free on that file system: free some, or ask for a smaller size"
        )


def _make(partial: Path) -> list[Path]:
    """Makes the folder and its missing parents; the parents that were made, outermost first. What
    was made before a failure is removed."""
    missing = [folder for folder in reversed(partial.parents) if not folder.exists()]
    made: list[Path] = []
    try:
        for folder in missing:
            folder.mkdir()
            made.append(folder)
        partial.mkdir()
    except OSError:
        for folder in reversed(made):
            folder.rmdir()
        raise
    return made


def _while_writing(target: Path, error: OSError) -> str:
    reason = error.strerror or str(error)
    if error.errno is None:  # numpy's tofile counts what went out and doesn't say why it was less
        reason = f"the file system took no more ({error})"
    hint = " Free some space, or ask for a smaller size." if error.errno in _OUT else ""
    return f"{target}: {reason} while writing; what was written has been removed.{hint}"


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
