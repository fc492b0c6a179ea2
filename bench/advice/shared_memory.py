"""Room in /dev/shm for an engine with several workers."""

from __future__ import annotations

from bench.advice.contract import Advice, Seen
from bench.sizes import format_size

ENOUGH = 1 << 30
"""Containers have 64 MiB unless told otherwise; workers and collectives end with a bus error."""


def find(seen: Seen) -> Advice | None:
    """/dev/shm holds less than ENOUGH bytes, as the host line says."""
    total = (seen.host.get("shared_memory") or {}).get("total_bytes")
    if not isinstance(total, int) or total >= ENOUGH:
        return None
    return Advice(
        name="shared-memory",
        title="Give /dev/shm more room",
        seen=f"/dev/shm holds {format_size(total)}; an engine with several workers passes data "
        f"through it and ends with a bus error where it is full.",
        do=(
            "docker run --shm-size=16g ...",
            "in Kubernetes: an emptyDir volume with medium: Memory, mounted at /dev/shm",
            "otherwise: sudo mount -o remount,size=16G /dev/shm",
        ),
        cost="what is written there is memory; it saves a failed start, no seconds of a good one",
    )
