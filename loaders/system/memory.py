"""How much memory this process may still take: the host's and every control group's above it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from loaders.system.cgroup import hierarchies
from loaders.system.files import Root, number, text, under

# v1 writes "no limit" as the largest multiple of the page size: 2^63 - 4096 or 2^63 - 65536.
_UNLIMITED = 2**60


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One group's memory limit, in bytes.

    `reclaimable` is the part of `used` that the kernel gives back before it kills anyone: file
    pages that were read once. Page cache counts against the group that read it, so a checkpoint
    that is larger than the limit pushes its own beginning out again.
    """

    source: str
    limit: int
    used: int
    reclaimable: int

    @property
    def left(self) -> int:
        return max(0, self.limit - max(0, self.used - self.reclaimable))


def limits(root: Root = "/") -> list[Limit]:
    """Every memory limit that binds this process, the own group's first; empty without any."""
    found: list[Limit] = []
    for hierarchy in hierarchies("memory", root):
        for group in hierarchy.groups:
            limit = _limit_v2(group) if hierarchy.version == 2 else _limit_v1(group)
            if limit is not None:
                found.append(limit)
    return found


def tightest_limit(root: Root = "/") -> int | None:
    """Bytes of the smallest limit; None without one. What is larger never stays in the cache."""
    return min((limit.limit for limit in limits(root)), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Available:
    """Bytes that can be taken without swapping or being killed, and who sets that bound."""

    nbytes: int
    bound: str


def available(root: Root = "/") -> Available:
    """The least of MemAvailable and what each group above still allows. OSError where neither can
    be read."""
    candidates = [Available(nbytes=limit.left, bound=limit.source) for limit in limits(root)]
    host = available_on_host(text(under(root, "/proc/meminfo")) or "")
    if host is not None:
        candidates.append(Available(nbytes=host, bound="MemAvailable"))
    if not candidates:
        raise OSError(
            f"{under(root, '/proc/meminfo')}: no MemAvailable found and no cgroup limit either, "
            "so the memory that may be used isn't known; is /proc mounted?"
        )
    return min(candidates, key=lambda candidate: candidate.nbytes)


def available_bytes(root: Root = "/") -> int:
    """`available`, the bytes alone."""
    return available(root).nbytes


def parse_meminfo(content: str) -> dict[str, int]:
    """/proc/meminfo: bytes by name where the line has a unit, else the plain number (HugePages_*).
    Lines that aren't of this form are left out."""
    values: dict[str, int] = {}
    for line in content.splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if fields and fields[0].isdecimal():
            values[name.strip()] = int(fields[0]) * (1024 if fields[1:] == ["kB"] else 1)
    return values


def available_on_host(content: str) -> int | None:
    """Bytes that can be had without swapping. Before Linux 3.14 there is no MemAvailable: then
    free memory and the page cache. None if neither is there."""
    values = parse_meminfo(content)
    if "MemAvailable" in values:
        return values["MemAvailable"]
    if "MemFree" not in values:
        return None
    return values["MemFree"] + values.get("Buffers", 0) + values.get("Cached", 0)


def _limit_v2(group: Path) -> Limit | None:
    # Above memory.high the kernel makes every allocation wait for reclaim: as good as a limit.
    bounds = [number(group / "memory.max"), number(group / "memory.high")]  # "max" is None
    return _limit(group, bounds, group / "memory.current", "inactive_file")


def _limit_v1(group: Path) -> Limit | None:
    # The hierarchical limit includes parents that a container can't see.
    hierarchical = _stat(group).get("hierarchical_memory_limit")
    bounds = [number(group / "memory.limit_in_bytes"), hierarchical]
    return _limit(group, bounds, group / "memory.usage_in_bytes", "total_inactive_file")


def _limit(group: Path, bounds: list[int | None], usage: Path, reclaimable: str) -> Limit | None:
    given = [bound for bound in bounds if bound is not None and bound < _UNLIMITED]
    if not given:
        return None
    return Limit(
        source=str(group),
        limit=min(given),
        used=number(usage) or 0,
        reclaimable=_stat(group).get(reclaimable, 0),
    )


def _stat(group: Path) -> dict[str, int]:
    """The numbers of memory.stat, bytes by name."""
    fields = (line.split() for line in (text(group / "memory.stat") or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in fields if len(pair) == 2 and pair[1].isdecimal()}
