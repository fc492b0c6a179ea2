"""Starting an engine in a session of its own, and ending it with all that it started."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from bench.watch.output import Arrived, Passage, pump
from bench.watch.processes import read_process
from bench.watch.tree import Tree

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37


class StartError(Exception):
    """The engine's command can't be started: which, why, what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The engine's first process has ended, and waits to be waited for."""

    time: float


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """Processes below us whose parent dies become our children instead of process 1's: an engine
    that starts itself in the background stays in sight, and can be ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int(0)
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


class Engine:
    """A running engine. `begun` is the moment just before it was started, in seconds of
    time.monotonic, `begun_at` the same of time.time."""

    def __init__(
        self,
        command: Sequence[str],
        passages: Sequence[Passage],
        notify: Callable[[Arrived | Ended], None],
    ) -> None:
        """StartError if there is no such program, or it can't be run."""
        out, err = passages
        self.passages = passages
        self.begun, self.begun_at = time.monotonic(), time.time()
        try:
            # A session of its own: what the terminal sends to our group (Ctrl-C) reaches the engine
            # only through us, so that it's ended once and in order.
            self._popen = subprocess.Popen(
                command, stdout=out.engine_end, stderr=err.engine_end, start_new_session=True
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StartError(
                f"can't start {command[0]!r}: {reason}. What comes after -- is started as it "
                "stands, without a shell"
            ) from error
        finally:
            for passage in passages:
                passage.close_engine_end()
        self.pid = self._popen.pid
        self._notify = notify
        self.returncode: int | None = None
        self._threads = [
            threading.Thread(target=pump, args=(passages, notify), daemon=True),
            threading.Thread(target=self._wait, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _wait(self) -> None:
        # Not reaped yet: so its counts can be read once more.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self._notify(Ended(time=time.monotonic()))

    def reap(self) -> int:
        """Its exit code, negative for a signal; to be called once it has ended."""
        self.returncode = self._popen.wait()
        return self.returncode

    def interrupt(self, tree: Tree) -> None:
        """What Ctrl-C in a terminal does: SIGINT to its process group; and to what has left that
        group, which would never hear of it."""
        if self.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGINT)
        send(tree, signal.SIGINT, outside=self.pid if self.returncode is None else None)


def reap_orphans(but: int) -> None:
    """Waits for every dead child of ours that isn't `but`: the adopted ones."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid == but:
            return
        with suppress(ChildProcessError):
            os.waitpid(found.si_pid, os.WNOHANG)


def send(tree: Tree, number: signal.Signals, *, outside: int | None = None) -> None:
    """Sends a signal to every process of the tree as last seen, but for those in the process group
    `outside`. One that has ended meanwhile, whose number another may have by now, gets none."""
    for process in tree.processes():
        now = read_process(process.pid, whole=False)
        if now is None or now.started != process.started or now.group == outside:
            continue
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def how_it_ended(code: int) -> str:
    """ "exit code 3" or "signal SIGKILL" of a process's return code."""
    if code >= 0:
        return f"exit code {code}"
    known = {number.value: number.name for number in signal.Signals}
    return f"signal {known.get(-code, -code)}"
