"""Which mount a path lies on: /proc/self/mountinfo (format: proc_pid_mountinfo(5))."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loaders.system.files import Root, text, under

_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line of mountinfo. `device` is "major:minor"; `root` is the folder of the file system
    that is mounted (not "/" for a bind mount, a btrfs subvolume, a container's cgroup)."""

    id: int
    parent: int
    device: str
    root: str
    point: str
    options: str
    fs_type: str
    source: str
    super_options: str


def parse(content: str) -> list[Mount]:
    """The mounts of a mountinfo text, in its order. ValueError for a line that isn't one."""
    return [_parse_line(line) for line in content.splitlines() if line.strip()]


def _parse_line(line: str) -> Mount:
    fields = line.split(" ")
    try:
        # Optional fields ("shared:1", ...) come before the separator, any number of them.
        separator = fields.index("-", 6)
        tail = fields[separator + 1 :]
        return Mount(
            id=int(fields[0]),
            parent=int(fields[1]),
            device=fields[2],
            root=_unescape(fields[3]),
            point=_unescape(fields[4]),
            options=fields[5],
            fs_type=_unescape(tail[0]),
            source=_unescape(tail[1]) if len(tail) > 1 else "",
            super_options=" ".join(tail[2:]),
        )
    except (ValueError, IndexError) as error:
        raise ValueError(f"not a line of mountinfo: {line!r}") from error


def _unescape(field: str) -> str:
    """Blank, tab, newline, backslash and # are written as a backslash and three octal digits."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), field)


def mount_for(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """The mount with the longest mount point at or above `path` (absolute, symlinks resolved); of
    several on the same point the last, which covers the others."""
    best: Mount | None = None
    for mount in mounts:
        if _contains(mount.point, path) and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _contains(point: str, path: str) -> bool:
    return point == "/" or path == point or path.startswith(point + "/")


def read_mounts(root: Root = "/") -> list[Mount]:
    """The mounts that this process sees; empty where /proc isn't there."""
    return parse(text(under(root, "/proc/self/mountinfo")) or "")


def mount_of(path: Path) -> Mount | None:
    """The mount that an existing `path` of this system lies on.

    The kernel is asked for the mount's number first (/proc/self/fdinfo): with mounts that cover
    others further up, mount points alone can name one that isn't visible. OSError if `path` can't
    be opened.
    """
    mounts = read_mounts()
    number = _mount_id(path)
    for mount in mounts:
        if mount.id == number:
            return mount
    return mount_for(os.path.realpath(path), mounts)


def _mount_id(path: Path) -> int | None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        content = text(Path(f"/proc/self/fdinfo/{descriptor}")) or ""
    finally:
        os.close(descriptor)
    for line in content.splitlines():
        key, _, value = line.partition(":")
        if key == "mnt_id" and value.strip().isdecimal():
            return int(value)
    return None
