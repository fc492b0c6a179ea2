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

from bench.measuring.channel import (
    Channel,
    ClosedError,
    receive_packet,
    send_packet,
    stamped_pair,
)

QUIET_THREADS = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
"""Threads of OpenMP (torch's, with which the consumer adds up) wait asleep. By default they spin
for a while after each piece of work, and take the cores from whoever reads the next bytes."""

START_TIMEOUT = 300.0
"""Seconds for importing torch: a cold one from a network file system takes minutes."""

ASK_TIMEOUT = 120.0
"""Seconds for the server to answer: a fork under memory pressure takes some."""

GRACE = 10.0
"""Seconds for a child to end by itself once it has said its last word."""

LAST_GRACE = 1.0
"""The same for one that has closed its channel: that is the last thing that a process does."""


class ChildError(Exception):
    """The child could not measure: what it raised, by which signal it ended, or that it hung."""


class Server:
    """A running fork server. Its children's output goes to `log`. One that was killed (out of
    memory, or by a loader) is started again at the next fork."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._preloads: list[dict[str, Any]] = []
        self._start()

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent, fd = str(os.getpid()), theirs.fileno()
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.measuring.forkserver", str(fd), parent],
                pass_fds=[fd],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is the runner's to handle
                env={**os.environ, **QUIET_THREADS},
            )
        theirs.close()
        self._control = ours
        self._asked = 0
        try:
            self._answer(START_TIMEOUT)
            for message in self._preloads:
                self._ask(message)
        except ChildError:
            ours.close()
            raise

    def preload(self, target: str, **args: Any) -> None:
        """Runs `module:function` in the server itself, for what all children then inherit."""
        message = {"op": "preload", "target": target, "args": args}
        self._ask(message)
        self._preloads.append(message)

    def fork(self, target: str, **args: Any) -> Child:
        """A child that runs `target(channel, **args)`; `module:function`, args JSON-able."""
        if self._process.poll() is not None:
            self._control.close()
            self._start()
        ours, theirs = stamped_pair()
        try:
            pid = self._ask({"op": "fork"}, fds=[theirs.fileno()])["pid"]
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        child = Child(self, pid, Channel(ours))
        # Not by the server: a packet has an upper size, and a checkpoint may have 100,000 files.
        child.tell({"target": target, "args": args})
        return child

    def reap(self, pid: int, grace: float) -> tuple[int, bool]:
        """Ends a child that doesn't end by itself within `grace` seconds, and whatever it left
        behind. Its exit code, negative for a signal, and whether it had to be ended."""
        answer = self._ask({"op": "reap", "pid": pid, "grace": grace}, ASK_TIMEOUT + grace)
        return answer["code"], answer["killed"]

    def close(self) -> None:
        self._control.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(
        self, message: dict[str, Any], timeout: float = ASK_TIMEOUT, fds: Sequence[int] = ()
    ) -> dict[str, Any]:
        self._asked += 1
        try:
            send_packet(self._control, {**message, "seq": self._asked}, fds)
        except ClosedError as error:
            raise self._gone() from error
        answer = self._answer(timeout)
        if "error" in answer:
            raise ChildError(answer["error"])
        return answer

    def _answer(self, timeout: float) -> dict[str, Any]:
        """The answer to the last question. One that nobody waited for (Ctrl-C) is passed over."""
        try:
            while (answer := receive_packet(self._control, timeout)[0])["seq"] != self._asked:
                pass
        except (ClosedError, TimeoutError) as error:
            raise self._gone() from error
        return answer

    def _gone(self) -> ChildError:
        self._process.kill()
        code = self._process.wait()
        tail = self.log.read_text(errors="replace").strip().splitlines()[-3:]
        return ChildError(
            f"the fork server is gone (exit {code}): {' | '.join(tail) or 'it said nothing'}; "
            f"its output is in {self.log}"
        )


class Child:
    """One measuring process, from its fork to its end."""

    def __init__(self, server: Server, pid: int, channel: Channel) -> None:
        self.pid = pid
        self._server = server
        self._channel = channel
        self._code: int | None = None
        self._killed = False

    def hear(self, timeout: float) -> dict[str, Any]:
        """The child's next message. ChildError if it raised, crashed or said nothing in time."""
        try:
            message = self._channel.receive(timeout)
        except TimeoutError as error:
            self.kill()
            raise ChildError(f"no answer within {timeout:g} s; the child was killed") from error
        except ClosedError as error:
            raise ChildError(self._ending()) from error
        except ValueError as error:  # something else wrote into the channel
            self.kill()
            raise ChildError(f"the child's message can't be read: {error}") from error
        if "error" in message:
            self.finish()
            raise ChildError(message["error"])
        return message

    @property
    def said_at(self) -> float:
        """When it had sent what was heard last, in seconds of time.perf_counter (Channel)."""
        return self._channel.sent_at

    def tell(self, message: dict[str, Any]) -> None:
        try:
            self._channel.send(message)
        except ClosedError as error:
            raise ChildError(self._ending()) from error

    def finish(self, grace: float = GRACE) -> int:
        """Waits for its end, and makes it end after `grace` seconds; the exit code, negative for a
        signal. ChildError if the server is gone, and the child with it."""
        if self._code is None:
            self._code = -signal.SIGKILL
            self._channel.close()
            self._code, self._killed = self._server.reap(self.pid, grace)
        return self._code

    def kill(self) -> None:
        self.finish(grace=0)

    def _ending(self) -> str:
        code = self.finish(LAST_GRACE)
        where = f"; its output is in {self._server.log}"
        if self._killed:
            return f"the child gave up its channel but went on, and was killed{where}"
        if code < 0:
            known = {number.value: number.name for number in signal.Signals}
            name = known.get(-code, f"signal {-code}")
            return f"the child ended by {name}{_hint(name)}{where}"
        return f"the child ended with exit code {code} without a result{where}"


def _hint(name: str) -> str:
    return {
        "SIGBUS": " (a mapped file was cut short, or its storage failed)",
        "SIGKILL": " (out of memory, or killed from outside)",
    }.get(name, "")
