"""How much memory this process may still take: the host's and every control group's above it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.cgroup import hierarchies
from bench.host.files import Root, number, text, under
from bench.host.meminfo import available

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


def available_bytes(root: Root = "/") -> int:
    """Bytes that can be taken without swapping or being killed: the least of MemAvailable and what
    each group above still allows. OSError where neither can be read."""
    candidates = [limit.left for limit in limits(root)]
    host = available(text(under(root, "/proc/meminfo")) or "")
    if host is not None:
        candidates.append(host)
    if not candidates:
        raise OSError(
            f"{under(root, '/proc/meminfo')}: no MemAvailable found and no cgroup limit either, "
            "so the memory that may be used isn't known; is /proc mounted?"
        )
    return min(candidates)


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
