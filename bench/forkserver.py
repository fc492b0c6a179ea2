"""The fork server: a process with torch already imported, which forks a child per measurement.

So peak memory, page faults and a crash belong to the measurement, at the price of a fork instead
of an import. It never runs a parallel kernel itself: OpenMP's threads do not survive a fork.
Children end when the server does, and the server when its runner does, however that happened.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import socket
import sys
import traceback
from typing import Any

from bench.channel import Channel, ClosedError, receive_packet, send_packet

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Asks the kernel for SIGKILL when `parent` ends, and looks whether it has already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(1)


def serve(control: socket.socket) -> None:
    """Answers `fork` (with the child's end of a channel as a passed descriptor), `preload` and
    `wait`, one at a time, until the runner is gone."""
    importlib.import_module("bench.child")  # torch and every loader, once
    try:
        send_packet(control, {"ready": True})
        while True:
            message, fds = receive_packet(control)
            if message["op"] == "fork":
                send_packet(control, {"pid": _fork(control, message, fds[0])})
            elif message["op"] == "preload":
                send_packet(control, _preload(message))
            elif message["op"] == "wait":
                _, status = os.waitpid(message["pid"], 0)
                send_packet(control, {"code": os.waitstatus_to_exitcode(status)})
    except ClosedError:
        return


def _fork(control: socket.socket, message: dict[str, Any], fd: int) -> int:
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            die_with_parent(server)
            control.close()
            code = _child(Channel(socket.socket(fileno=fd)), message)
        finally:
            os._exit(code)  # whatever happened: the server's loop must not run twice
    os.close(fd)
    return pid


def _child(channel: Channel, message: dict[str, Any]) -> int:
    try:
        _resolve(message["target"])(channel, **message["args"])
    except ClosedError:
        return 1
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        print(text, file=sys.stderr, flush=True)
        channel.send({"error": f"{type(error).__name__}: {error}", "traceback": text})
        return 1
    return 0


def _preload(message: dict[str, Any]) -> dict[str, Any]:
    """Runs a function in the server, so that every child inherits what it cached."""
    try:
        _resolve(message["target"])(**message["args"])
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"ok": True}


def _resolve(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[2]))
    serve(socket.socket(fileno=int(sys.argv[1])))
