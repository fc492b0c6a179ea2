"""What the kernel counted for this process: CPU seconds, faults, bytes from the device, memory.

The measuring child reads its own counters, since the fork server's children are not the runner's.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Totals since the process began: seconds, faults, bytes."""

    cpu_seconds: float
    minor_faults: int
    major_faults: int
    device_read_bytes: int | None

    def since(self, before: Counters) -> Counters:
        fetched = None
        if self.device_read_bytes is not None and before.device_read_bytes is not None:
            fetched = self.device_read_bytes - before.device_read_bytes
        return Counters(
            cpu_seconds=self.cpu_seconds - before.cpu_seconds,
            minor_faults=self.minor_faults - before.minor_faults,
            major_faults=self.major_faults - before.major_faults,
            device_read_bytes=fetched,
        )


class Meter:
    """Reads the counters of this process; its files are opened before the clock runs."""

    def __init__(self) -> None:
        try:
            self._io: int | None = os.open("/proc/self/io", os.O_RDONLY)
        except OSError:  # a kernel without task I/O accounting, or a container that hides it
            self._io = None

    def read(self) -> Counters:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        fetched = None
        if self._io is not None:
            fetched = parse_read_bytes(os.pread(self._io, 4096, 0).decode())
        return Counters(
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            minor_faults=usage.ru_minflt,
            major_faults=usage.ru_majflt,
            device_read_bytes=fetched,
        )


def parse_read_bytes(text: str) -> int | None:
    """`read_bytes` of /proc/<pid>/io: bytes that this process caused to be fetched from storage."""
    return _field(text, "read_bytes:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Resident bytes now, by kind, and the high-water mark since the last reset."""

    resident: int
    peak: int
    anonymous: int
    file: int


def memory() -> Memory:
    return parse_status(Path("/proc/self/status").read_text())


def parse_status(text: str) -> Memory:
    """From /proc/<pid>/status, which gives kB."""

    def kilobytes(key: str) -> int:
        return (_field(text, key) or 0) * 1024

    return Memory(
        resident=kilobytes("VmRSS:"),
        peak=kilobytes("VmHWM:"),
        anonymous=kilobytes("RssAnon:"),
        file=kilobytes("RssFile:") + kilobytes("RssShmem:"),
    )


def reset_peak() -> bool:
    """Sets the high-water mark to what is resident now; False where the kernel doesn't let us."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _field(text: str, key: str) -> int | None:
    for line in text.splitlines():
        if line.startswith(key):
            return int(line.split()[1])
    return None
