"""Messages between the runner and its children: JSON objects over socket pairs.

A child's channel is a stream, one object a line. The fork server's is of packets, one object each,
so that a descriptor passed along stays with its message.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any


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


class Channel:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._pending = b""

    def send(self, message: dict[str, Any]) -> None:
        """ClosedError if nobody listens any more."""
        try:
            self.sock.sendall(json.dumps(message).encode() + b"\n")
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
                data = self.sock.recv(65536)
            except ConnectionResetError as error:
                raise ClosedError from error
            if not data:
                raise ClosedError
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    @property
    def waiting(self) -> bool:
        """Whether a message lies here already, which the socket itself no longer shows."""
        return b"\n" in self._pending

    def close(self) -> None:
        self.sock.close()
