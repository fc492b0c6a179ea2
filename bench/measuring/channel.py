"""Messages between the runner and its children: JSON objects over socket pairs.

A channel's objects are lines, whatever pieces they come in: over a stream, or over packets, which
the kernel stamps when they are sent. The fork server's are packets of one object each, so that a
descriptor passed along stays with its message.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

SO_TIMESTAMPNS = 35
"""Linux, asm-generic/socket.h; Python has no name for it. The stamp has the same number."""

TIMESPEC = struct.Struct("qq")

PIECE = 32768
"""Bytes of one packet at most: what every kernel's send buffer holds."""


class ClosedError(Exception):
    """The other side is gone."""


def send_packet(sock: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """One message over a SOCK_SEQPACKET pair. ClosedError if nobody listens any more."""
    try:
        socket.send_fds(sock, [json.dumps(message).encode()], fds)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise ClosedError from error


def receive_packet(
    sock: socket.socket, timeout: float | None = None
) -> tuple[dict[str, Any], list[int]]:
    """The next message and the descriptors that came with it. ClosedError, TimeoutError."""
    sock.settimeout(timeout)
    try:
        data, fds, _, _ = socket.recv_fds(sock, 1 << 20, 1)
    except ConnectionResetError as error:
        raise ClosedError from error
    if not data:
        raise ClosedError
    return json.loads(data), fds


def stamped_pair() -> tuple[socket.socket, socket.socket]:
    """A pair of packet sockets; what is sent to the first carries the kernel's stamp."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    return ours, theirs


def _both_clocks() -> tuple[float, int]:
    """The seconds of time.perf_counter and the nanoseconds of the wall clock at one moment: of
    three looks the one in which this thread didn't lose its core between the two."""
    looks = []
    for _ in range(3):
        began = time.perf_counter()
        wall = time.time_ns()
        looks.append((time.perf_counter() - began, began, wall))
    return min(looks)[1:]


def _sent_at(stamps: list[tuple[int, int, bytes]]) -> float:
    """When a packet that was received just now had been sent; now, where it has no stamp."""
    now, wall = _both_clocks()
    for level, kind, data in stamps:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
            seconds, nanoseconds = TIMESPEC.unpack(data)
            late: int = wall - seconds * 10**9 - nanoseconds
            # a wall clock that was set back meanwhile would put the sending into the future
            return now - max(0, late) / 1e9
    return now


class Channel:
    """`sent_at` is when the last message that was received had been sent: seconds of
    time.perf_counter, by the kernel's stamp where the socket has one, else when it was received.
    Who waits asleep may be woken late, by milliseconds on a virtual machine with idle cores."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sent_at = 0.0
        self._pending = b""

    def send(self, message: dict[str, Any]) -> None:
        """ClosedError if nobody listens any more."""
        try:
            line = json.dumps(message).encode() + b"\n"
            for first in range(0, len(line), PIECE):
                self.sock.sendall(line[first : first + PIECE])
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ClosedError from error

    def await_awake(self, seconds: float) -> None:
        """Returns when something has arrived, or after `seconds`; doesn't sleep meanwhile."""
        self.sock.setblocking(False)
        end = time.perf_counter() + seconds
        while not self._pending and time.perf_counter() < end:
            with suppress(BlockingIOError, ConnectionResetError):
                self.sock.recv(1, socket.MSG_PEEK)
                return

    def receive(self, timeout: float | None = None) -> dict[str, Any]:
        """The next message. ClosedError when the other side is gone, TimeoutError after `timeout`
        seconds without a message."""
        self.sock.settimeout(timeout)
        while b"\n" not in self._pending:
            try:
                data, stamps, _, _ = self.sock.recvmsg(65536, 64)
            except ConnectionResetError as error:
                raise ClosedError from error
            if not data:
                raise ClosedError
            self._pending += data
            self.sent_at = _sent_at(stamps)
        line, _, self._pending = self._pending.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    @property
    def waiting(self) -> bool:
        """Whether a message lies here already, which the socket itself no longer shows."""
        return b"\n" in self._pending

    def close(self) -> None:
        self.sock.close()
