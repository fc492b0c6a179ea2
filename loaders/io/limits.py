"""How much memory this process may still use: the host's and its control groups' word."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Available:
    """Bytes that can be had without swapping or being killed, and who sets that bound."""

    nbytes: int
    bound: str


def available_memory(root: Path = Path("/")) -> Available:
    """The least of /proc/meminfo's MemAvailable and of what each enclosing cgroup (v2 or v1) leaves
    free. Page cache that a group can give back at once (inactive_file) counts as free, as the
    kubelet counts it: else a checkpoint that was just read would fill the group by itself.

    `root` is where /proc and /sys hang, for tests. OSError if there is no /proc/meminfo.
    """
    found = Available(nbytes=_meminfo(root / "proc/meminfo"), bound="MemAvailable")
    for folder, names in _groups(root):
        limit = _number(folder / names[0])
        usage = _number(folder / names[1])
        if limit is None or usage is None:
            continue
        free = max(limit - usage + _inactive(folder / "memory.stat", names[2]), 0)
        if min(free, limit) < found.nbytes:
            found = Available(
                nbytes=min(free, limit), bound=f"/{(folder / names[0]).relative_to(root)}"
            )
    return found


_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _groups(root: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """The folders of this process's memory groups, innermost first: each bounds those within. In a
    container the path may be one of the host's that isn't there; its mount's top still is."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return  # a kernel without control groups
    for line in lines:
        _, controllers, path = line.split(":", 2)
        tops: tuple[str, ...]
        if controllers == "":
            tops, names = ("sys/fs/cgroup", "sys/fs/cgroup/unified"), _V2
        elif "memory" in controllers.split(","):
            tops, names = ("sys/fs/cgroup/memory",), _V1
        else:
            continue
        inner = Path(path.lstrip("/"))
        for top in tops:
            for folder in [inner, *inner.parents]:
                yield root / top / folder, names


def _meminfo(path: Path) -> int:
    for line in path.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{path}: no MemAvailable line; expected one from Linux 3.14 on")


def _number(path: Path) -> int | None:
    """A file that holds one number; None where it isn't there or says "max"."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _inactive(path: Path, key: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [key]), 0)
