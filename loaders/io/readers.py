"""Reads of a known length from a known offset, through the page cache or around it (O_DIRECT).

Direct reads need aligned memory, offsets and lengths, and not every file system has them: some
refuse at open, some only at the first read, some answer with nothing. Here the caller may ask for
any range; what can't be read directly is read through the page cache, and the file says why.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import threading
from types import TracebackType
from typing import Any

from loaders.io.buffers import PAGE, allocate
from loaders.io.errors import TruncatedError

_UNSUPPORTED = {errno.EINVAL, errno.EOPNOTSUPP}
_STATX_DIOALIGN = 0x2000  # Linux 6.1
_AT_EMPTY_PATH = 0x1000
_DIOALIGN_AT = 152  # offset of stx_dio_mem_align in struct statx
_SAFE_ALIGN = 4096  # holds for every block device of 512 or 4096 byte sectors
_libc = ctypes.CDLL(None, use_errno=True)


class OpenFile:
    """A file opened for reading by any number of threads.

    `direct`: reads go around the page cache. `fell_back`: why they don't although it was asked for,
    else None. `memory_align`, `offset_align`: what direct reads need, in bytes.
    """

    def __init__(self, path: str, *, direct: bool = False) -> None:
        """Opens it. OSError with the file's name if it can't be opened at all."""
        self.path = path
        self.direct = direct
        self.fell_back: str | None = None
        self._lock = threading.Lock()
        flags = os.O_RDONLY | os.O_CLOEXEC
        if direct:
            try:
                self.fd = os.open(path, flags | os.O_DIRECT)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
                self.direct = False
                self.fell_back = f"open with O_DIRECT: {error.strerror}"
        if not self.direct:
            self.fd = os.open(path, flags)
        self.memory_align, self.offset_align = _direct_alignment(self.fd)

    def fall_back(self, reason: str) -> None:
        """From now on reads go through the page cache. Reads in flight aren't disturbed."""
        with self._lock:
            if self.direct:
                flags = fcntl.fcntl(self.fd, fcntl.F_GETFL)
                fcntl.fcntl(self.fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
                self.direct, self.fell_back = False, reason

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _direct_alignment(fd: int) -> tuple[int, int]:
    """(memory, offset) alignment for direct reads: statx's answer, else a value that suits every
    block device. Powers of two, in bytes."""
    answer = ctypes.create_string_buffer(256)
    statx: Any = getattr(_libc, "statx", None)  # glibc 2.28, musl 1.2.5
    if statx is None or statx(fd, b"", _AT_EMPTY_PATH, _STATX_DIOALIGN, answer) != 0:
        return _SAFE_ALIGN, _SAFE_ALIGN
    (mask,) = struct.unpack_from("=I", answer, 0)
    memory, offset = struct.unpack_from("=II", answer, _DIOALIGN_AT)
    if not mask & _STATX_DIOALIGN or memory == 0 or offset == 0:
        return _SAFE_ALIGN, _SAFE_ALIGN
    return memory, offset


def read_into(file: OpenFile, into: memoryview, offset: int) -> None:
    """Fills `into` with the bytes that start at `offset` of the file.

    A direct file is read directly but for the ends that don't fill a block, which go through a
    small aligned block of their own. For that the memory must be congruent: its address and the
    offset leave the same remainder by the alignment. Where it isn't, or where the file system
    refuses, the file falls back (see OpenFile).

    Raises TruncatedError if the file ends first; OSError with the file's name for anything else.
    Interrupted calls are repeated by Python itself (PEP 475).
    """
    length = len(into)
    if not file.direct or length == 0:
        _fill(file, into, offset)
        return
    align = file.offset_align
    first = -(-offset // align) * align
    last = (offset + length) // align * align
    if last <= first:  # within one block or two
        _through_a_block(file, into, offset)
        return
    head = first - offset
    if (_address(into) + head) % file.memory_align:
        file.fall_back("memory isn't aligned as the file offset is")
        _fill(file, into, offset)
        return
    _through_a_block(file, into[:head], offset)
    _fill(file, into[head : last - offset], first)
    _through_a_block(file, into[last - offset :], last)


def read_block(file: OpenFile, into: memoryview, offset: int, needed: int) -> None:
    """Fills `into`, whose address and `offset` are multiples of the page size, with one call where
    the length is one, too. The file may end behind the first `needed` bytes: an aligned read past
    its end spares the last block a way of its own. Raises as `read_into`."""
    small = PAGE % file.offset_align == PAGE % file.memory_align == 0
    if file.direct and not (small and len(into) % PAGE == 0):
        read_into(file, into[:needed], offset)  # or a device with larger blocks than pages
    else:
        _fill(file, into, offset, needed)


def _through_a_block(file: OpenFile, into: memoryview, offset: int) -> None:
    """Reads the blocks around a short range into aligned memory and copies the range out."""
    if not into:
        return
    align = max(file.offset_align, PAGE)
    low = offset // align * align
    high = -(-(offset + len(into)) // align) * align
    with allocate(high - low + align) as block:
        start = -block.address % align
        memory = block.view(start, high - low)
        _fill(file, memory, low, enough=offset + len(into) - low)
        into[:] = memory[offset - low : offset - low + len(into)]
        memory.release()


def _fill(file: OpenFile, into: memoryview, offset: int, enough: int | None = None) -> None:
    """Reads until `into` is full, or holds `enough` bytes where the file ends before."""
    enough = len(into) if enough is None else enough
    done = 0
    while done < enough:
        direct = file.direct  # as this call begins: another thread may fall back during it
        try:
            got = os.preadv(file.fd, [into[done:]], offset + done)
        except OSError as error:
            if direct and error.errno in _UNSUPPORTED:
                file.fall_back(f"read with O_DIRECT: {error.strerror}")
                continue
            raise _named(error, file, offset + done) from error
        done += got
        if direct and done < enough and got % file.offset_align == 0 and got > 0:
            continue  # cut short between two blocks: go on directly
        if direct and done < enough:
            # Nothing, or an end inside a block. If the file does end here, the next read says so.
            file.fall_back(f"read with O_DIRECT: {got} bytes at offset {offset + done - got}")
        elif got == 0:
            raise TruncatedError(
                file.path, expected=offset + enough, found=os.fstat(file.fd).st_size
            )


def _named(error: OSError, file: OpenFile, offset: int) -> OSError:
    text = f"{error.strerror or error} (read at offset {offset})"
    return OSError(error.errno or errno.EIO, text, file.path)


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
