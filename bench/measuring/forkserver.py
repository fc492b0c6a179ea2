"""The fork server: a process with torch already imported, which forks a child per measurement.

So peak memory, page faults and a crash belong to the measurement, at the price of a fork instead
of an import. It never runs a parallel kernel itself: OpenMP's threads do not survive a fork.
Children end when the server does, and the server when its runner does, however that happened.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
import time
import traceback
from typing import Any

from bench.measuring.channel import Channel, ClosedError, receive_packet, send_packet
from loaders.store.address import scrubbed

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
    `reap`, one at a time, until the runner is gone. An answer carries its question's `seq`."""
    import torch

    # Loaders from outside may compute while they are imported; a pool of threads wouldn't survive
    # the fork, and every child would hang in its first parallel kernel. Children set their own.
    torch.set_num_threads(1)
    importlib.import_module("bench.measuring.child")  # torch and every loader, once
    _settle()
    ended: dict[int, dict[str, Any]] = {}
    try:
        send_packet(control, {"ready": True, "seq": 0})
        while True:
            message, fds = receive_packet(control)
            if message["op"] == "fork":
                answer = _fork(control, fds)
                ended.pop(answer.get("pid", 0), None)  # a new process of an old number
            elif message["op"] == "preload":
                answer = _preload(message)
            else:
                pid = message["pid"]
                answer = ended[pid] = ended.get(pid) or _reap(pid, message["grace"])
            send_packet(control, {**answer, "seq": message["seq"]})
    except ClosedError:
        return


def _fork(control: socket.socket, fds: list[int]) -> dict[str, Any]:
    if not fds:
        return {"error": "no channel came with the fork (too many open files?)"}
    server, fd = os.getpid(), fds[0]
    try:
        pid = os.fork()
    except OSError as error:  # no more processes or memory now; later there may be
        os.close(fd)
        return {"error": f"can't fork a child: {error.strerror}"}
    if pid == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            die_with_parent(server)
            control.close()
            os.set_inheritable(fd, False)
            code = _child(Channel(socket.socket(fileno=fd)))
        finally:
            os._exit(code)  # whatever happened: the server's loop must not run twice
    os.close(fd)
    return {"pid": pid}


def _reap(pid: int, grace: float) -> dict[str, Any]:
    """Waits `grace` seconds for a child's end, then ends it, and with it what it has started and
    left behind in its process group."""
    deadline = time.monotonic() + grace
    look = os.WEXITED | os.WNOWAIT | os.WNOHANG
    while (there := os.waitid(os.P_PID, pid, look) is None) and time.monotonic() < deadline:
        time.sleep(0.001)
    # It isn't reaped yet, so neither the number nor the group's can be anyone else's.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    if there:
        os.kill(pid, signal.SIGKILL)  # in case that it has left its group
    _, status = os.waitpid(pid, 0)
    return {"code": os.waitstatus_to_exitcode(status), "killed": there}


def _child(channel: Channel) -> int:
    # A process that a loader forks must not keep the channel open, nor speak on it.
    os.register_at_fork(after_in_child=channel.close)
    try:
        message = channel.receive()
        _resolve(message["target"])(channel, **message["args"])
    except ClosedError:
        return 1
    except BaseException as error:
        text = scrubbed("".join(traceback.format_exception(error)))
        print(text, file=sys.stderr, flush=True)
        said = scrubbed(f"{type(error).__name__}: {error}")
        channel.send({"error": said, "traceback": text})
        return 1
    return 0


def _preload(message: dict[str, Any]) -> dict[str, Any]:
    """Runs a function in the server, so that every child inherits what it cached."""
    try:
        _resolve(message["target"])(**message["args"])
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    _settle()
    return {"ok": True}


def _settle() -> None:
    """Takes what is there out of the garbage collector's sight: a child's first collection would
    walk through all of torch, a tenth of a second, and copy the pages that it shares with us."""
    gc.collect()
    gc.freeze()


def _resolve(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[2]))
    serve(socket.socket(fileno=int(sys.argv[1])))
