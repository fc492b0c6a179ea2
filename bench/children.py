"""The runner's side of the fork server: start it, fork children, tell and hear them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.channel import Channel, ClosedError, receive_packet, send_packet

START_TIMEOUT = 300.0
"""Seconds for importing torch: a cold one from a network file system takes minutes."""


class ChildError(Exception):
    """The child could not measure: what it raised, by which signal it ended, or that it hung."""


class Server:
    """A running fork server. Its children's output goes to `log`."""

    def __init__(self, log: Path) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "bench.forkserver",
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is the runner's to handle
            )
        theirs.close()
        self._control = ours
        self.log = log
        self._ask(None, START_TIMEOUT)

    def preload(self, target: str, **args: Any) -> None:
        """Runs `module:function` in the server itself, for what all children then inherit."""
        answer = self._ask({"op": "preload", "target": target, "args": args})
        if "error" in answer:
            raise ChildError(answer["error"])

    def fork(self, target: str, **args: Any) -> Child:
        """A child that runs `target(channel, **args)`; `module:function`, args JSON-able."""
        ours, theirs = socket.socketpair()
        message = {"op": "fork", "target": target, "args": args}
        pid = self._ask(message, fds=[theirs.fileno()])["pid"]
        theirs.close()
        return Child(self, pid, Channel(ours))

    def exit_code(self, pid: int) -> int:
        """Waits for a child; negative for a signal."""
        code: int = self._ask({"op": "wait", "pid": pid})["code"]
        return code

    def close(self) -> None:
        self._control.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(
        self, message: dict[str, Any] | None, timeout: float = 120.0, fds: Sequence[int] = ()
    ) -> dict[str, Any]:
        try:
            if message is not None:
                send_packet(self._control, message, fds)
            return receive_packet(self._control, timeout)[0]
        except (ClosedError, TimeoutError) as error:
            self._process.kill()
            code = self._process.wait()
            tail = self.log.read_text(errors="replace").strip().splitlines()[-3:]
            raise ChildError(
                f"the fork server is gone (exit {code}): {' | '.join(tail) or 'it said nothing'}; "
                f"its output is in {self.log}"
            ) from error


class Child:
    """One measuring process, from its fork to its end."""

    def __init__(self, server: Server, pid: int, channel: Channel) -> None:
        self.pid = pid
        self._server = server
        self._channel = channel
        self._code: int | None = None

    def hear(self, timeout: float) -> dict[str, Any]:
        """The child's next message. ChildError if it raised, crashed or said nothing in time."""
        try:
            message = self._channel.receive(timeout)
        except TimeoutError as error:
            self.kill()
            raise ChildError(f"no answer within {timeout:.0f} s; the child was killed") from error
        except ClosedError as error:
            raise ChildError(self._ending()) from error
        if "error" in message:
            self.finish()
            raise ChildError(message["error"])
        return message

    def tell(self, message: dict[str, Any]) -> None:
        try:
            self._channel.send(message)
        except ClosedError as error:
            raise ChildError(self._ending()) from error

    def finish(self) -> int:
        """Waits for its end; the exit code, negative for a signal."""
        if self._code is None:
            self._code = self._server.exit_code(self.pid)
            self._channel.close()
        return self._code

    def kill(self) -> None:
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)  # not reaped yet, so the pid is still its own
            self.finish()

    def _ending(self) -> str:
        code = self.finish()
        if code < 0:
            name = signal.Signals(-code).name
            return f"the child ended by {name}{_hint(name)}"
        return f"the child ended with exit code {code} without a result"


def _hint(name: str) -> str:
    return {
        "SIGBUS": " (a mapped file was cut short, or its storage failed)",
        "SIGKILL": " (out of memory, or killed from outside)",
    }.get(name, "")
