"""Memory of the host: /proc/meminfo, huge pages, overcommit, and the limits of this process."""

from __future__ import annotations

import os
import re
import resource

from loaders.system.files import Root, chosen, listed, number, text, under
from loaders.system.memory import parse_meminfo

_HUGE_SIZE = re.compile(r"hugepages-(\d+)kB")


def memory_facts(root: Root = "/") -> dict[str, object]:
    """Sizes in bytes; what isn't known is None."""
    values = parse_meminfo(text(under(root, "/proc/meminfo")) or "")
    thp = "/sys/kernel/mm/transparent_hugepage"
    return {
        "total_bytes": values.get("MemTotal"),
        "available_bytes": values.get("MemAvailable"),
        "cached_bytes": values.get("Cached"),
        "swap_total_bytes": values.get("SwapTotal"),
        "swap_free_bytes": values.get("SwapFree"),
        "transparent_huge_pages": {
            "enabled": chosen(text(under(root, f"{thp}/enabled"))),
            "defrag": chosen(text(under(root, f"{thp}/defrag"))),
            "size_bytes": number(under(root, f"{thp}/hpage_pmd_size")),
        },
        "huge_pages": _huge_pages(root),
        "overcommit_memory": number(under(root, "/proc/sys/vm/overcommit_memory")),
        "overcommit_ratio": number(under(root, "/proc/sys/vm/overcommit_ratio")),
        "dirty_ratio": number(under(root, "/proc/sys/vm/dirty_ratio")),
        "swappiness": number(under(root, "/proc/sys/vm/swappiness")),
        "page_size_bytes": os.sysconf("SC_PAGE_SIZE"),
    }


def _huge_pages(root: Root) -> list[dict[str, int | None]]:
    """The reserved pools, one for each page size."""
    base = under(root, "/sys/kernel/mm/hugepages")
    pools: list[dict[str, int | None]] = []
    for name in listed(base):
        match = _HUGE_SIZE.fullmatch(name)
        if match:
            pools.append(
                {
                    "page_bytes": int(match[1]) * 1024,
                    "total": number(base / name / "nr_hugepages"),
                    "free": number(base / name / "free_hugepages"),
                }
            )
    return sorted(pools, key=lambda pool: pool["page_bytes"] or 0)


def process_limits() -> dict[str, dict[str, int | str]]:
    """Soft and hard limits of this process: a number or "unlimited". `memlock` (bytes) bounds
    pinned memory, `nofile` open files, `address_space` (bytes) large mappings."""
    wanted = {
        "memlock": resource.RLIMIT_MEMLOCK,
        "nofile": resource.RLIMIT_NOFILE,
        "address_space": resource.RLIMIT_AS,
    }
    found: dict[str, dict[str, int | str]] = {}
    for name, which in wanted.items():
        soft, hard = resource.getrlimit(which)
        found[name] = {"soft": _finite(soft), "hard": _finite(hard)}
    return found


def _finite(value: int) -> int | str:
    return "unlimited" if value == resource.RLIM_INFINITY else value
