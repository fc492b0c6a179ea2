"""How many cores this process may use: the default for every thread count."""

from __future__ import annotations

import os

from loaders.system.cgroup import hierarchies
from loaders.system.files import Root, text

_DEFAULT_PERIOD = 100_000  # microseconds; the kernel's default, where only a quota is given


def effective_cores(root: Root = "/", *, affinity: int | None = None) -> int:
    """Cores from the affinity mask (which cpusets narrow) and the CPU quota of every group above,
    rounded down, at least 1.

    Down, so that "150000 100000" gives 1: a second thread would spend its half core early in each
    period, and then the kernel stops all threads until the next one begins. A measurement must not
    sit in that stop. (The JVM and Go round up, because they'd rather use all that is paid for.)

    Args:
        root: where /proc and /sys are; a fake tree in tests.
        affinity: number of CPUs in the mask; asked from the kernel if not given.
    """
    cores = len(os.sched_getaffinity(0)) if affinity is None else affinity
    quota = quota_cores(root)
    return max(1, cores if quota is None else min(cores, int(quota)))


def quota_cores(root: Root = "/") -> float | None:
    """The tightest CPU quota, in cores; None without one. ValueError for a file that isn't one."""
    quotas: list[float] = []
    for hierarchy in hierarchies("cpu", root):
        for group in hierarchy.groups:
            if hierarchy.version == 2:
                quota = parse_cpu_max(text(group / "cpu.max"))
            else:
                quota = parse_cfs(
                    text(group / "cpu.cfs_quota_us"), text(group / "cpu.cfs_period_us")
                )
            if quota is not None:
                quotas.append(quota)
    return min(quotas, default=None)


def parse_cpu_max(content: str | None) -> float | None:
    """Cores from a v2 cpu.max: "150000 100000" is 1.5, "max 100000" is None."""
    quota, *period = (content or "max").split()
    return None if quota == "max" else parse_cfs(quota, period[0] if period else None)


def parse_cfs(quota: str | None, period: str | None) -> float | None:
    """Cores from v1's cpu.cfs_quota_us and cpu.cfs_period_us; a quota of -1 is none."""
    try:
        granted = int(quota or -1)
        length = int(period or _DEFAULT_PERIOD)
    except ValueError as error:
        raise ValueError(f"not a CPU quota: {quota!r} in {period!r} microseconds") from error
    return granted / length if granted > 0 and length > 0 else None
