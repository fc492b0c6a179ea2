"""What pictures and pages call things. Pure."""

from __future__ import annotations

from bench.record.summary import Group, Row

MEMORY = {
    "mapped": "pages of the file (mapped)",
    "borrowed": "a reused buffer (borrowed)",
    "owned": "memory of its own (owned)",
    "device": "the device's memory",
}
PHASES = {
    "disk_to_host": "storage to host memory",
    "host_to_device": "host memory to device",
    "slice": "slicing",
    "quantise": "quantising",
    "layout": "the device's layout",
    "assemble": "assembling",
    "ranks": "ranks on one storage",
    "w8a8": "checkpoint to quantised parameters",
    "stage": "copied to another storage first",
}
CACHES = {"cold": "cold", "warm": "warm", "none": ""}


COPY = "memory copy to a second buffer (no accelerator)"
"""What the phase host_to_device is where the device is the host."""


def memory_words(group: Group) -> str:
    """Where the bytes come to lie."""
    if group.ownership == "device" and group.device == "cpu":
        return "a second buffer"
    return MEMORY.get(group.ownership, group.ownership)


def phase_words(phase: str, device: str = "") -> str:
    """`device` is that of all that is spoken of, if there is one."""
    if phase == "host_to_device" and device == "cpu":
        return COPY
    return PHASES.get(phase, phase.replace("_", " "))


def place(group: Group) -> str:
    """Where a group was measured: `nvme, cold`; with the phase where that isn't reading, with
    device and share where they aren't the plain ones."""
    parts = [
        "" if group.phase == "disk_to_host" else phase_words(group.phase, group.device),
        group.storage or ("memory" if group.phase == "disk_to_host" else ""),
        CACHES.get(group.cache, group.cache),
        "" if group.device == "cpu" else group.device,
        "" if group.layout == "tp1" else group.layout,
    ]
    return ", ".join(part for part in parts if part)


def named(row: Row) -> str:
    """A row's title, with its threads."""
    return row.title if row.threads is None else f"{row.title}, {threads(row.threads)}"


def threads(count: int) -> str:
    """`1 thread`, `8 threads`."""
    return f"{count} thread{'' if count == 1 else 's'}"
