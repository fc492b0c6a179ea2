"""The two system calls that look into the page cache, through ctypes."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from loaders.system.files import text

PAGE = os.sysconf("SC_PAGE_SIZE")

# The same number on every architecture that got its calls after 2019; glibc has no wrapper.
_CACHESTAT = 451
_PROT_READ, _MAP_SHARED = 1, 1
_PIECE = 1 << 30  # bytes mapped at once by mincore: bounds the vector that the kernel fills
_LOW_BIT = bytes(value & 1 for value in range(256))  # the other bits of mincore's are reserved
_CAP_FOWNER = 3

_libc = ctypes.CDLL(None, use_errno=True)


class _Range(ctypes.Structure):
    """struct cachestat_range of <linux/mman.h>."""

    _fields_ = [("off", ctypes.c_uint64), ("len", ctypes.c_uint64)]


class _Counts(ctypes.Structure):
    """struct cachestat of <linux/mman.h>: numbers of pages."""

    _fields_ = [
        ("nr_cache", ctypes.c_uint64),
        ("nr_dirty", ctypes.c_uint64),
        ("nr_writeback", ctypes.c_uint64),
        ("nr_evicted", ctypes.c_uint64),
        ("nr_recently_evicted", ctypes.c_uint64),
    ]


_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
]
_munmap = _libc.munmap
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_mincore = _libc.mincore
_mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_MAP_FAILED = ctypes.c_void_p(-1).value


def cachestat(descriptor: int, offset: int, length: int) -> int:
    """Bytes (whole pages) of a file's range in the page cache. `length` > 0, since 0 means "to the
    end" to the kernel. OSError: ENOSYS before Linux 6.5, EPERM under some seccomp filters and for
    other people's files, EOPNOTSUPP on hugetlbfs."""
    if length <= 0:
        return 0
    wanted = _Range(offset, length)
    counts = _Counts()
    failed = _syscall(
        ctypes.c_long(_CACHESTAT),
        ctypes.c_long(descriptor),
        ctypes.byref(wanted),
        ctypes.byref(counts),
        ctypes.c_long(0),
    )
    if failed:
        raise _error("cachestat")
    return int(counts.nr_cache) * PAGE


def mincore(descriptor: int, offset: int, length: int) -> int:
    """Bytes (whole pages) of a file's range in the page cache; `offset` is a multiple of the page.

    OSError EPERM for a file that the caller neither owns nor may write: since Linux 5.2 the kernel
    then says that every page is resident (mm/mincore.c, can_do_mincore). ENODEV where the file
    system has no mappings."""
    if not may_ask_mincore(descriptor):
        raise OSError(errno.EPERM, "the kernel answers 'all resident' for other people's files")
    end = offset + length
    return sum(
        _mincore_piece(descriptor, start, min(_PIECE, end - start))
        for start in range(offset, end, _PIECE)
    )


def _mincore_piece(descriptor: int, offset: int, length: int) -> int:
    address = _mmap(None, length, _PROT_READ, _MAP_SHARED, descriptor, offset)
    if address == _MAP_FAILED:
        raise _error("mmap")
    try:
        vector = ctypes.create_string_buffer(-(-length // PAGE))
        if _mincore(address, length, vector):
            raise _error("mincore")
        return vector.raw.translate(_LOW_BIT).count(1) * PAGE
    finally:
        _munmap(address, length)


def may_ask_mincore(descriptor: int) -> bool:
    """Whether the kernel tells this process the truth about the file: for its owner, for those who
    may write it, and for a process that may act as any owner."""
    if os.fstat(descriptor).st_uid == os.geteuid():
        return True
    if os.access(f"/proc/self/fd/{descriptor}", os.W_OK, effective_ids=True):
        return True
    return _acts_as_owner()


def _acts_as_owner() -> bool:
    """CAP_FOWNER, where it covers every user: not in a user namespace with only some of them."""
    identities = (text(Path("/proc/self/uid_map")) or "").split()
    if identities != ["0", "0", "4294967295"]:
        return False
    for line in (text(Path("/proc/self/status")) or "").splitlines():
        key, _, value = line.partition(":")
        if key == "CapEff":
            return bool(int(value, 16) >> _CAP_FOWNER & 1)
    return False


def _error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")
