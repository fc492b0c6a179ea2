"""How long processes of the host were stalled, by the kernel's pressure stall information."""

from __future__ import annotations

from loaders.system.files import text, under


def stalled_seconds(what: str, root: str = "/") -> float | None:
    """Seconds in which some process of the host was stalled on "io", or had to wait for a "cpu",
    since it started; None on kernels without pressure stall information."""
    content = text(under(root, f"/proc/pressure/{what}")) or ""
    for line in content.splitlines():
        if line.startswith("some "):
            total = line.rpartition("total=")[2]
            return int(total) / 1e6 if total.isdecimal() else None
    return None
