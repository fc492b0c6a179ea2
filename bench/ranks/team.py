"""The runner's side of a node's ranks: starts torchrun, tells them, hears them, ends them."""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.measuring.channel import Channel, ClosedError
from bench.measuring.children import QUIET_THREADS, START_TIMEOUT
from bench.ranks.failure import Event, Stuck, Who, blame, hung
from bench.ranks.job import Job

ROOT = Path(__file__).parent.parent.parent
GRACE = 1.5
"""Seconds in which the others' ends are heard once a rank has failed."""

LAST_WAIT = 10.0
"""Seconds for torchrun to notice that its ranks have ended, and to say how."""

LONGEST_FOLDER = 70
"""Bytes of a path, with which the name of a socket below it still fits into an address."""

PROVING = 600.0
"""Seconds for digests, beside those that a sample may take."""


class RankError(Exception):
    """A rank died, hung or raised: the text names it. `heard` are the messages of those that had
    said what was waited for, by rank."""

    def __init__(self, text: str, heard: dict[int, dict[str, Any]] | None = None) -> None:
        super().__init__(text)
        self.heard = heard or {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Which node this is of how many, `nproc` ranks each. `endpoint` is host:port of the first one,
    None where there is but one."""

    nproc: int
    count: int = 1
    rank: int = 0
    endpoint: str | None = None

    @property
    def world(self) -> int:
        return self.nproc * self.count

    @property
    def own(self) -> range:
        """The ranks of this node: torchrun's static rendezvous counts by node."""
        return range(self.rank * self.nproc, (self.rank + 1) * self.nproc)

    def arguments(self, attempt: int) -> list[str]:
        """torchrun's. Each start has a port of its own: an ended one may still hold the last."""
        if self.endpoint is None:
            return ["--standalone"]
        host, _, port = self.endpoint.rpartition(":")
        return [
            f"--nnodes={self.count}",
            f"--node-rank={self.rank}",
            "--rdzv-backend=static",
            f"--rdzv-endpoint={host}:{int(port) + attempt}",
            f"--rdzv-id=coldload-{attempt}",
        ]


@dataclass(slots=True, kw_only=True)
class Member:
    """A rank of this node as its runner sees it."""

    who: Who
    channel: Channel
    stage: str = "starting"
    rounds: int = 0
    gone: bool = False
    heard: list[dict[str, Any]] = field(default_factory=list)


class Team:
    """A node's ranks, joined with those of the other nodes. RankError from every method that hears
    of one that failed; after that it can only be closed. What they printed then goes to the end of
    the file `keep`, or to standard error."""

    def __init__(
        self, job: Job, nodes: Nodes, *, attempt: int = 0, keep: Path | None = None
    ) -> None:
        self.nodes = nodes
        self.members: dict[int, Member] = {}
        self.collective = ""
        self._keep = keep
        self._failure: str | None = None
        self._events: list[Event] = []
        self._folder = _short_folder()
        self._log = self._folder / "log"
        self._select = selectors.DefaultSelector()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._start(job, attempt)
            joined = self.gather("joined", START_TIMEOUT)
        except BaseException:
            self.close()
            raise
        self.collective = next(iter(joined.values()))["collective"]

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def log(self) -> str:
        """What torchrun and the ranks printed."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def _start(self, job: Job, attempt: int) -> None:
        job_path = self._folder / "job"
        job_path.write_bytes(pickle.dumps(job))
        address = str(self._folder / "socket")
        environment = {**os.environ, **QUIET_THREADS, "OMP_NUM_THREADS": str(job.threads)}
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        if self.nodes.count == 1:  # gloo would look the host's name up, which not every host has
            environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(self.nodes.nproc)
            with self._log.open("ab") as output:
                self._process = subprocess.Popen(
                    [
                        *(sys.executable, "-m", "bench.ranks.start", str(os.getpid())),
                        *self.nodes.arguments(attempt),
                        f"--nproc-per-node={self.nodes.nproc}",
                        "--max-restarts=0",
                        "--monitor-interval=0.1",
                        *("-m", "bench.ranks.worker", address, str(job_path)),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # Ctrl-C is the runner's to handle
                    env=environment,
                )
            self._accept(listener, time.monotonic() + START_TIMEOUT)

    def _accept(self, listener: socket.socket, deadline: float) -> None:
        assert self._process is not None
        listener.settimeout(0.2)
        while len(self.members) < self.nodes.nproc:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                if self._process.poll() is not None:
                    tail = " | ".join(self.log.strip().splitlines()[-3:]) or "it said nothing"
                    self._failure = (
                        f"torchrun ended (exit {self._process.returncode}) before its ranks came: "
                        f"{tail}"
                    )
                    raise RankError(self._failure) from None
                if time.monotonic() > deadline:
                    self._failure = (
                        f"{len(self.members)} of {self.nodes.nproc} ranks came within "
                        f"{START_TIMEOUT:g} s{self._elsewhere()}"
                    )
                    raise RankError(self._failure) from None
                continue
            channel = Channel(connection)
            hello = channel.receive(10.0)
            who = Who(rank=hello["rank"], host=hello["host"], pid=hello["pid"])
            member = self.members[who.rank] = Member(who=who, channel=channel)
            self._select.register(connection, selectors.EVENT_READ, member)

    def _elsewhere(self) -> str:
        if self.nodes.count == 1:
            return ""
        return (
            f"; are all {self.nodes.count} nodes started, with one --rdzv-endpoint "
            f"({self.nodes.endpoint}), each with its own --node-rank?"
        )

    def tell(self, message: dict[str, Any]) -> None:
        for member in self.members.values():
            with contextlib.suppress(ClosedError):  # the next gather says who that was
                member.channel.send(message)

    def gather(
        self, key: str, timeout: float, *, on_heard: Callable[[Member], None] = lambda member: None
    ) -> dict[int, dict[str, Any]]:
        """Each rank's next message that has `key`, by rank. RankError if one fails first, or after
        `timeout` seconds."""
        found: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + timeout
        while len(found) < len(self.members):
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._hung(found, timeout)
            for member in self._heard(left):
                while member.heard:
                    message = member.heard.pop(0)
                    if key in message:
                        found[member.who.rank] = message
                        on_heard(member)
            if self._events:
                raise self._failed(found)
        return found

    def _heard(self, timeout: float) -> list[Member]:
        """The members of whom something was heard, within `timeout` seconds."""
        heard = []
        for key, _ in self._select.select(timeout):
            member: Member = key.data
            heard.append(member)
            try:
                self._take(member, member.channel.receive(10.0))
                while member.channel.waiting:
                    self._take(member, member.channel.receive(0.0))
            except (ClosedError, TimeoutError):
                self._leave(member)
        return heard

    def _take(self, member: Member, message: dict[str, Any]) -> None:
        if "error" in message:
            self._events.append(
                Event(who=member.who, text=message["error"], peer=bool(message.get("peer")))
            )
            member.gone = True
        elif "round" in message:
            member.rounds = message["round"] + 1
            member.stage = f"in exchange {member.rounds}"
        else:
            member.stage = STAGES.get(next(iter(message)), member.stage)
            member.heard.append(message)

    def _leave(self, member: Member) -> None:
        self._select.unregister(member.channel.sock)
        member.channel.close()
        if not member.gone:
            member.gone = True
            self._events.append(Event(who=member.who))

    def _failed(self, found: dict[int, dict[str, Any]]) -> RankError:
        """Hears the others out for a moment, ends what is left and asks torchrun for its report."""
        deadline = time.monotonic() + GRACE
        while (left := deadline - time.monotonic()) > 0 and self._select.get_map():
            self._heard(left)
        self._kill()
        self._failure = blame(self._events, self.log)
        return RankError(self._failure, found)

    def _hung(self, found: dict[int, dict[str, Any]], timeout: float) -> RankError:
        stuck = [
            Stuck(
                who=member.who,
                stage=member.stage,
                rounds=member.rounds,
                state=_state(member.who.pid),
            )
            for rank, member in sorted(self.members.items())
            if rank not in found
        ]
        text = hung(stuck, timeout, len(found), len(self.members))
        self._kill()
        self._failure = text
        return RankError(text, found)

    def close(self) -> None:
        """Lets the ranks leave, or ends them; nothing of them is left afterwards."""
        if self._failure is None and self._process is not None and self._process.poll() is None:
            self.tell({"end": True})
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=LAST_WAIT if self.collective else 0)
        self._kill()
        for member in self.members.values():
            member.channel.close()
        self._select.close()
        if self._failure is not None:
            self._tell_more(f"{self._failure}\n{self.log}")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _tell_more(self, text: str) -> None:
        if self._keep is None:
            print(text, file=sys.stderr, flush=True)
            return
        with contextlib.suppress(OSError), self._keep.open("a") as file:  # the reason is recorded
            file.write(text)

    def _kill(self) -> None:
        for member in self.members.values():
            if not member.gone:  # its channel is open, so the number is still its own
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member.who.pid, signal.SIGKILL)
                member.gone = True
        if self._process is None or self._process.poll() is not None:
            return
        if not self.members:
            self._process.terminate()  # it ends the ranks that it has started by then
        try:
            self._process.wait(timeout=LAST_WAIT)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)  # ranks end with it
            self._process.wait()


def _short_folder() -> Path:
    """A new folder of this user alone, in which a socket can have its name: 107 bytes at most."""
    usual = tempfile.gettempdir()
    short = len(usual.encode()) <= LONGEST_FOLDER
    return Path(tempfile.mkdtemp(prefix="coldload-ranks-", dir=usual if short else "/tmp"))


STAGES = {
    "joined": "waiting for a case",
    "ready": "waiting for the go",
    "started": "reading",
    "done": "done",
    "digests": "waiting for a case",
}
"""The last thing that a rank said -> what it is about."""


def _state(pid: int) -> str | None:
    """The letter of a process's state, None where it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()[0]


def fault_of(expected: dict[str, str], found: dict[str, str], rank: int) -> Sequence[str]:
    """The first few parameters of a rank that hold something else than they must."""
    wrong = [name for name in expected if found.get(name) != expected[name]]
    wrong += [name for name in found if name not in expected]
    return [f"rank {rank}: {name}: wrong bytes" for name in wrong[:5]]
