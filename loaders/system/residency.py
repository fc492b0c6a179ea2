"""How much of a file lies in the page cache, and whether the answer can be trusted.

Two system calls can tell. `cachestat` (Linux 6.5) needs no mapping; `mincore` is as old as Linux.
Both can mislead: on overlayfs cachestat looks at the overlay's own inode, which has no pages, and
always says 0; for a file that the caller neither owns nor may write, mincore says "all of it". So a
method is used only after it has seen pages that were read a moment before (`choose_method`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from loaders.system.pagecalls import cachestat, mincore

# (file descriptor, offset, length) -> bytes of that range in the page cache, in whole pages.
# OSError where it can't tell.
Measure = Callable[[int, int, int], int]
METHODS: Mapping[str, Measure] = {"cachestat": cachestat, "mincore": mincore}

_TEST_BYTES = 64 * 1024
# What the kernel says when it can't or won't tell: not built in, forbidden by seccomp or for other
# people's files, not for this file system (hugetlbfs, no mappings), not for this kind of file.
REFUSALS = frozenset(
    {
        errno.ENOSYS,
        errno.EPERM,
        errno.EACCES,
        errno.EOPNOTSUPP,
        errno.ENODEV,
        errno.EINVAL,
        errno.EBADF,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """A chosen way to ask. `method` is "cachestat", "mincore" or None: then every answer is None
    and a run's cache state is `unverified`. `reason` says why a method wasn't used."""

    method: str | None
    reason: str | None
    devices: frozenset[int]
    measure: Measure | None

    def resident_bytes(self, path: Path) -> int | None:
        """Bytes of the file in the page cache (whole pages, no more than its size); None if that
        can't be known. OSError if the file can't be opened."""
        if self.measure is None:
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if status.st_dev not in self.devices:  # never tested on that file system
                return None
            if status.st_size == 0:
                return 0
            return min(self.measure(descriptor, 0, status.st_size), status.st_size)
        except OSError as error:
            if error.errno in REFUSALS:
                return None
            raise
        finally:
            os.close(descriptor)

    def resident_fraction(self, paths: Iterable[Path]) -> float | None:
        """Resident part of all files together, 0 to 1; None if one of them isn't known, or if there
        is nothing in them."""
        total = resident = 0
        for path in paths:
            known = self.resident_bytes(path)
            if known is None:
                return None
            resident += known
            total += path.stat().st_size
        return resident / total if total else None


UNKNOWN = Residency(
    method=None, reason="no residency method was tried", devices=frozenset(), measure=None
)


def choose_method(
    *paths: Path, methods: Mapping[str, Measure] = METHODS, sample_bytes: int = _TEST_BYTES
) -> Residency:
    """The first method that works on every file system which `paths` lie on.

    Reads up to `sample_bytes` of one file for each file system, which stay in the page cache: a
    measurement calls it once at set-up, before anything is evicted. OSError if a file can't be
    read.
    """
    samples: dict[int, Path] = {}
    for path in paths:
        status = path.stat()
        if status.st_size:
            samples.setdefault(status.st_dev, path)
    if not samples:
        return Residency(
            method=None, reason="no file with content to try", devices=frozenset(), measure=None
        )
    reasons: list[str] = []
    for name, measure in methods.items():
        failures = [_self_test(path, measure, sample_bytes) for path in samples.values()]
        failure = next((found for found in failures if found is not None), None)
        if failure is None:
            return Residency(
                method=name,
                reason="; ".join(reasons) or None,
                devices=frozenset(samples),
                measure=measure,
            )
        reasons.append(f"{name}: {failure}")
    return Residency(
        method=None, reason="; ".join(reasons), devices=frozenset(samples), measure=None
    )


def _self_test(path: Path, measure: Measure, sample_bytes: int) -> str | None:
    """Why `measure` can't be trusted on the file system of `path`, or None if it can."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # fetch no more than is read
        got = len(os.pread(descriptor, sample_bytes, 0))
        seen = measure(descriptor, 0, got)
    except OSError as error:
        if error.errno in REFUSALS:
            return error.strerror or str(error)
        raise
    finally:
        os.close(descriptor)
    if seen < got:
        return f"saw {seen} of {got} bytes that had just been read"
    return None
