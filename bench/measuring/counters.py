"""What the kernel counted for this process: CPU seconds, faults, bytes from the device, memory.

The measuring child reads its own counters, since the fork server's children are not the runner's.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path

from bench.measuring.deviceread import parse_io


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Totals since the process began: seconds, faults, bytes."""

    cpu_seconds: float
    system_seconds: float
    minor_faults: int
    major_faults: int
    device_read_bytes: int | None

    def since(self, before: Counters) -> Counters:
        fetched = None
        if self.device_read_bytes is not None and before.device_read_bytes is not None:
            fetched = self.device_read_bytes - before.device_read_bytes
        return Counters(
            cpu_seconds=self.cpu_seconds - before.cpu_seconds,
            system_seconds=self.system_seconds - before.system_seconds,
            minor_faults=self.minor_faults - before.minor_faults,
            major_faults=self.major_faults - before.major_faults,
            device_read_bytes=fetched,
        )


class Meter:
    """The counters of this process, to be looked at with two bare calls: opening and parsing a file
    right after heavy work takes milliseconds, which the runner's clock would see and the child's
    wouldn't."""

    def __init__(self) -> None:
        try:
            self._io: int | None = os.open("/proc/self/io", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # a kernel, or a sandbox, without it
            self._io = None

    def look(self) -> tuple[resource.struct_rusage, bytes]:
        """What `counters_of` understands."""
        text = os.pread(self._io, 4096, 0) if self._io is not None else b""
        return resource.getrusage(resource.RUSAGE_SELF), text

    def close(self) -> None:
        if self._io is not None:
            os.close(self._io)


def counters_of(look: tuple[resource.struct_rusage, bytes]) -> Counters:
    usage, text = look
    return Counters(
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        system_seconds=usage.ru_stime,
        minor_faults=usage.ru_minflt,
        major_faults=usage.ru_majflt,
        device_read_bytes=parse_io(text.decode()).get("read_bytes"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Resident bytes now, by kind, and the high-water mark since the last reset; None for what this
    kernel doesn't tell (sandboxes show fewer fields)."""

    resident: int | None
    peak: int | None
    anonymous: int | None
    file: int | None


def memory() -> Memory:
    return parse_status(Path("/proc/self/status").read_text())


def parse_status(text: str) -> Memory:
    """From /proc/<pid>/status, which gives kB."""

    files, shared = _bytes(text, "RssFile:"), _bytes(text, "RssShmem:")
    return Memory(
        resident=_bytes(text, "VmRSS:"),
        peak=_bytes(text, "VmHWM:"),
        anonymous=_bytes(text, "RssAnon:"),
        file=None if files is None else files + (shared or 0),
    )


def reset_peak() -> bool:
    """Sets the high-water mark to what is resident now; False where the kernel doesn't let us."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _bytes(text: str, key: str) -> int | None:
    for line in text.splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    return None
