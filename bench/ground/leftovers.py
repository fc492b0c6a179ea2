"""Folders that are written beside their place and renamed when whole; and what is left of one when
its process was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from bench.ground.filesystems import describe
from loaders.system.mounts import mount_of

_NAME = re.compile(r"\.(?P<of>.+)\.incomplete-(?P<pid>[1-9][0-9]{0,9})", re.DOTALL)
MADE = "coldload.json"
"""The file that says how a checkpoint was made; the first one that `coldload make` writes."""

DATA = ".coldload"
"""The folder on a storage that made and copied checkpoints lie in."""

_ELSEWHERE = frozenset({"network", "fuse", "unknown"})
DAY = 86400.0
"""Seconds without a change after which a folder is left over where its process may run on another
host, whose processes and locks can't be seen from here."""


def partial_of(dest: Path) -> Path:
    """The hidden folder beside `dest` that this process writes before it is renamed."""
    return dest.with_name(f".{dest.name}.incomplete-{os.getpid()}")


@contextlib.contextmanager
def held(partial: Path) -> Iterator[None]:
    """Locks a folder that is being written, so that nobody takes it for left over; where the file
    system has no locks for folders (NFS), nobody else gets one either. OSError if it isn't there.
    """
    descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path, of: str | None = None) -> list[Path]:
    """Removes what killed processes left half written in `folder`; what was removed.

    Only folders named as ours whose process is gone, and of these only what is certainly ours: all
    in a data folder (DATA) and its parts, elsewhere what was to become `of`, or holds MADE. What
    can't be looked at or removed stays: whoever needs the room is told of that by the room.
    """
    try:
        there = sorted(folder.iterdir())
    except OSError:
        return []
    removed = []
    ours = DATA in (folder.name, folder.parent.name)
    for path in there:
        found = _NAME.fullmatch(path.name)
        if found is None or path.is_symlink() or not path.is_dir():
            continue
        if not (ours or found["of"] == of or (path / MADE).is_file()):
            continue
        with contextlib.suppress(OSError):  # another one is removing it, or it is someone else's
            if _left_over(path, int(found["pid"])):
                shutil.rmtree(path)
                removed.append(path)
    return removed


def _left_over(path: Path, pid: int) -> bool:
    if path.stat().st_uid != os.geteuid() or Path(f"/proc/{pid}").exists():
        return False
    mount = mount_of(path)
    if mount is None or describe(mount.fs_type).family in _ELSEWHERE:
        return time.time() - _last_change(path) > DAY
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # A process in another container has another number here, but the same locks.
        return _lock(descriptor)
    finally:
        os.close(descriptor)


def _last_change(path: Path) -> float:
    return max(one.stat().st_mtime for one in (path, *path.rglob("*")))


def _lock(descriptor: int) -> bool:
    """Whether the lock was got; False where another has it, or there are none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
