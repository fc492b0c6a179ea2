"""Where this process stands in the control groups: v1, v2, both at once, or inside a container.

A limit binds everything below it, so whoever asks for one walks from the own group up to the mount.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from loaders.system.files import Root, is_directory, text, under
from loaders.system.mounts import Mount, read_mounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """The groups that bind this process: its own first, then each parent up to the mount."""

    version: Literal[1, 2]
    groups: tuple[Path, ...]


def hierarchies(controller: str, root: Root = "/") -> list[Hierarchy]:
    """The hierarchies that may limit `controller` ("cpu", "memory"): v2 and v1, where present.

    Both are looked at on a hybrid host: only one holds the controller, and the other simply lacks
    its files. Without mountinfo the usual places below /sys/fs/cgroup are tried.
    """
    own = _own_groups(text(under(root, "/proc/self/cgroup")) or "")
    found: list[Hierarchy] = []
    seen: set[int] = set()
    for version, mount_root, directory in _mounted(controller, root):
        if version in seen or not is_directory(directory):
            continue
        seen.add(version)
        group = own.get("" if version == 2 else controller, "/")
        found.append(Hierarchy(version=version, groups=_upwards(directory, mount_root, group)))
    return found


def _own_groups(content: str) -> dict[str, str]:
    """Controller -> path from /proc/self/cgroup; the v2 group has the empty name."""
    groups: dict[str, str] = {}
    for line in content.splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        for name in controllers.split(","):
            groups[name] = path or "/"
    return groups


def _mounted(controller: str, root: Root) -> Iterator[tuple[Literal[1, 2], str, Path]]:
    """(version, mounted folder of the hierarchy, mount point), the most recent mount first."""
    mounts: list[Mount] = [m for m in read_mounts(root) if m.fs_type in ("cgroup", "cgroup2")]
    for mount in reversed(mounts):
        if mount.fs_type == "cgroup2":
            yield 2, mount.root, under(root, mount.point)
        elif controller in mount.super_options.split(","):
            yield 1, mount.root, under(root, mount.point)
    if not mounts:
        yield 2, "/", under(root, "/sys/fs/cgroup")
        yield 1, "/", under(root, f"/sys/fs/cgroup/{controller}")


def _upwards(directory: Path, mount_root: str, group: str) -> tuple[Path, ...]:
    """The own group and its parents. In a container the group's path may be one of the host's that
    isn't visible below the mount; then the mount itself is the container's group."""
    relative = PurePosixPath(group)
    if relative.is_relative_to(mount_root):
        relative = relative.relative_to(mount_root)
    elif mount_root != "/":
        relative = PurePosixPath()
    parts = [part for part in relative.parts if part != "/"]
    if ".." in parts or not is_directory(directory.joinpath(*parts)):
        parts = []
    return tuple(directory.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))
