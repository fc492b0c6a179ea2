"""What a stage was made of, from what was counted while it lasted. Pure arithmetic.

A stage's wall time is split into five parts that add up to it:

    disk     waiting for storage: the bytes came through read calls
    faults   faulting pages: waiting for storage inside page faults of a mapping, and the kernel's
             own work for faults
    copy     the kernel copying bytes from the page cache into buffers
    compute  everything else that a core did
    other    neither a core nor storage was at work for this engine: it waited for a process outside
             of its tree (also one that had the core), a lock, the network or its accelerator

What is counted is exact; the split is an estimate. Its rules:

- Time on a core is that of the busiest process in each look, at most the wall time: eight workers
  that each wait for the disk two thirds of their time aren't "computing".
  With fewer than five looks nobody knows who took turns: then it's that of all processes, as far
  as the time that wasn't spent waiting for storage allows.
- Time waiting for storage is, in this order: the kernel's own delay accounting of the processes;
  the host's seconds in which something was stalled on input and output; the share of looks at which
  a process was found waiting for a device; else what the cores leave over, if bytes did come.
- Where both together exceed the wall time they overlapped, and both are shortened in proportion.
- Bytes from storage that no read call accounts for came by page faults of a mapping.
- Of the kernel's time, a fault takes `FAULT_SECONDS` and a byte of a read call `COPY_SECONDS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.watch.samples import Span

FAULT_SECONDS = 0.7e-6
"""Entering the kernel, zeroing or mapping 4 KiB: 0.5 to 1 microseconds on the hosts of today."""

COPY_SECONDS = 0.1e-9
"""A byte from the page cache into a buffer that is touched already: about 10 GB/s for a core."""

KINDS = ("disk", "faults", "copy", "compute", "other")

WORDS: Mapping[str, str] = {
    "disk": "waiting for the disk",
    "faults": "faulting pages",
    "copy": "copying",
    "compute": "computing",
    "other": "waiting for another process",
}

# With fewer bytes than this from storage nothing waited for it, whatever the host's stall count
# says: that holds other processes' stalls, too.
_WITNESS_NEEDS_BYTES = 1 << 20
_LOOKS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeUp:
    """Seconds by kind (KINDS), which add up to `wall_seconds`. `main` is the largest; `witness`
    says what the waiting for storage was told by. `cores` is CPU seconds of all processes by wall
    seconds, `device_gbps` 10^9 bytes a second from storage, None where bytes aren't counted."""

    wall_seconds: float
    seconds: Mapping[str, float]
    main: str | None
    witness: str
    cores: float
    device_gbps: float | None

    def share(self, kind: str) -> float:
        return self.seconds[kind] / self.wall_seconds if self.wall_seconds else 0.0


def make_up(span: Span) -> MakeUp:
    """See the module's text. A span without length has no main kind."""
    wall, counts = span.wall_seconds, span.counts
    if wall <= 0:
        return MakeUp(
            wall_seconds=0.0,
            seconds=dict.fromkeys(KINDS, 0.0),
            main=None,
            witness="too short to tell",
            cores=0.0,
            device_gbps=None,
        )
    core = min(span.busiest_cpu_seconds, wall)
    stalled, witness = _stalled(span, core)
    if span.looks < _LOOKS:
        # Work that went from process to process between two looks isn't the busiest one's alone.
        core = max(core, min(counts.cpu_seconds, wall - stalled))
    if stalled + core > wall:
        stalled, core = (part * wall / (stalled + core) for part in (stalled, core))
    by_faults = _by_faults(span)
    faulting, copying = _kernel_work(span, core)
    seconds = {
        "disk": stalled * (1 - by_faults),
        "faults": stalled * by_faults + faulting,
        "copy": copying,
        "compute": max(0.0, core - faulting - copying),
        "other": max(0.0, wall - stalled - core),
    }
    return MakeUp(
        wall_seconds=wall,
        seconds=seconds,
        main=max(KINDS, key=lambda kind: seconds[kind]),
        witness=witness,
        cores=counts.cpu_seconds / wall,
        device_gbps=None if counts.device_bytes is None else counts.device_bytes / wall / 1e9,
    )


def _stalled(span: Span, core: float) -> tuple[float, str]:
    """Seconds in which storage was waited for, and how they are known."""
    wall, fetched = span.wall_seconds, span.counts.device_bytes
    if fetched is not None and fetched < _WITNESS_NEEDS_BYTES:
        return 0.0, "no bytes came from storage"
    waited = span.counts.block_wait_seconds
    if waited:  # 0 also where delay accounting is switched off, as it is by default
        return min(waited, wall), "the kernel's delay accounting"
    if span.stalled_seconds is not None:
        return min(span.stalled_seconds, wall), "the host's stall count (/proc/pressure/io)"
    if span.blocked is not None and span.looks >= _LOOKS:
        return span.blocked * wall, f"found waiting at {span.blocked:.0%} of {span.looks} looks"
    if fetched is None:
        return 0.0, "nothing here tells what waits for storage"
    return max(0.0, wall - core), "what the cores left over while bytes came from storage"


def _by_faults(span: Span) -> float:
    """The part of the bytes from storage that came by page faults, 0 to 1. Without any fault that
    had to wait there was none (what reads without read calls, as io_uring does)."""
    counts = span.counts
    if not counts.device_bytes or not counts.major_faults:
        return 0.0
    if counts.read_bytes is None:
        return 0.0
    return max(0.0, counts.device_bytes - counts.read_bytes) / counts.device_bytes


def _kernel_work(span: Span, core: float) -> tuple[float, float]:
    """Seconds of faulting and of copying within `core`, from the kernel's time. All processes'
    counts, brought down to the busiest one's part of the CPU time."""
    counts = span.counts
    if counts.cpu_seconds <= 0:
        return 0.0, 0.0
    part = min(1.0, core / counts.cpu_seconds)
    system = counts.system_seconds * part
    faulting = (counts.minor_faults + counts.major_faults) * FAULT_SECONDS * part
    copying = (counts.read_bytes or 0) * COPY_SECONDS * part
    together = faulting + copying
    if together > system:
        faulting, copying = (value * system / together for value in (faulting, copying))
    return faulting, copying
