"""One watched start: from starting the engine to its end, or to readiness if that's enough."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Sequence

from bench.watch.devices import DeviceMemory
from bench.watch.engine import Ended, Engine, adopting_orphans, reap_orphans, send
from bench.watch.inbox import Event, Inbox, Interrupt, Token, signals_into, window_changes
from bench.watch.output import Arrived, Passage, Splitter, lines_of
from bench.watch.pressure import stalled_seconds
from bench.watch.probes import Answered, first_token, poll
from bench.watch.reader import Reader
from bench.watch.samples import Moment, next_interval
from bench.watch.stages import telling
from bench.watch.tree import Tree
from bench.watch.watched import Watched, Wishes

_STEPS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
_DRAIN = 0.5  # seconds for the last output of an engine that has ended
_GONE_YET = 0.05  # between looks at what is being stopped, or has left its first process behind
_IDLE = 3600.0  # while a server serves there is nothing to look at


def watch(
    command: Sequence[str],
    wishes: Wishes,
    on_ready: Callable[[Watched], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> Watched:
    """Starts `command` and stays with it. `on_ready` is called once the engine is ready and the
    first token is there, if one was asked for; before that with nothing, and not at all if it
    never is; `say` gets what the user may want to know meanwhile. StartError if the command can't
    be started.

    SIGINT, SIGTERM and SIGHUP end the engine with all its processes, and what was seen is returned.
    """
    inbox = Inbox()
    with adopting_orphans(), signals_into(inbox):
        return _Session(command, wishes, inbox, on_ready, say).run()


class _Session:
    def __init__(
        self,
        command: Sequence[str],
        wishes: Wishes,
        inbox: Inbox,
        on_ready: Callable[[Watched], None],
        say: Callable[[str], None],
    ) -> None:
        self.wishes, self.inbox, self.on_ready, self.say = wishes, inbox, on_ready, say
        self.devices = DeviceMemory()
        self.tree = Tree(os.getpid())
        self.splitter = Splitter()
        self.no_polling = threading.Event()
        self.used_before = _own_cpu_seconds()
        passages = (Passage("stdout", wishes.stdout), Passage("stderr", wishes.stderr))
        self.engine = Engine(command, passages, self._notify)
        self.streams = len(passages)
        self.next_look = self.engine.begun
        self.over = False
        self.interrupts = self.patience = 0
        self.seen = Watched(
            command=tuple(command),
            begun_at=self.engine.begun_at,
            reader=Reader(),
            secrets=wishes.secrets,
            by_url=wishes.ready_url is not None,
        )

    def _notify(self, event: Arrived | Ended) -> None:
        if isinstance(event, Arrived):
            self.inbox.put(event)
        else:
            self.inbox.urgent(event)

    def run(self) -> Watched:
        wishes, seen = self.wishes, self.seen
        if wishes.ready_url:
            arguments = (wishes.ready_url, wishes.api_key, self.inbox.urgent, self.no_polling)
            threading.Thread(target=poll, args=arguments, daemon=True).start()
        with window_changes(self.engine.passages):
            try:
                self._go_on(lambda: seen.ready is not None, timeout=wishes.timeout)
                if seen.ready is not None and not self.over:
                    if wishes.first_token_url:
                        self._ask_first_token(wishes.first_token_url)
                        self._go_on(lambda: seen.first_token is not None)
                    self._sum_up()
                    self.on_ready(seen)
                if not self.over and not wishes.until_ready:
                    self._go_on(lambda: False)
            finally:
                if seen.own_cpu_share is None:
                    self._sum_up()  # before the stopping, which is no part of the start
                self.no_polling.set()
                self._stop()
                self._drain()
        return seen

    def _go_on(
        self,
        enough: Callable[[], bool],
        *,
        timeout: float | None = None,
        even_if_over: bool = False,
    ) -> None:
        """Takes events and looks at the tree until it's enough, time is up, or all is over."""
        until = None if timeout is None else time.monotonic() + timeout
        while not enough() and (even_if_over or not self.over):
            now = time.monotonic()
            if until is not None and now >= until:
                if not even_if_over:
                    self.seen.outcome, self.over = "timeout", True
                return
            if now >= self.next_look:
                self._look()
            wake = min(self.next_look, until) if until is not None else self.next_look
            event = self.inbox.get(wake - time.monotonic())
            if event is not None:
                self._take(event)

    def _take(self, event: Event) -> None:
        seen = self.seen
        if isinstance(event, Arrived):
            self._read(event)
        elif isinstance(event, Answered):
            self._is_ready(event.time, "url")
        elif isinstance(event, Token):
            seen.first_token = event.found
            if event.found.time is not None:
                seen.first_token_at = event.found.time - self.engine.begun
        elif isinstance(event, Interrupt):
            self.interrupts += 1
            if not self.over:
                seen.outcome, self.over = "interrupted", True
        else:
            self._has_ended(event)

    def _read(self, event: Arrived) -> None:
        if not event.data:
            self.streams -= 1
        data = self.splitter.feed(event)
        time_since = event.time - self.engine.begun
        bounds = False
        if telling(data):
            for line in lines_of(data):
                bounds = self.seen.stages.feed(line, time_since) or bounds
        self.seen.reader.feed(data, event.time)
        if bounds and self.seen.ready is None:
            self._look()  # so that the counts at a stage's end needn't be interpolated
        if self.seen.stages.ready is not None and not self.wishes.ready_url:
            self._is_ready(self.engine.begun + self.seen.stages.ready, "log")

    def _is_ready(self, time_: float, told_by: str) -> None:
        if self.seen.ready is None:
            self._look()
            self.seen.ready, self.seen.ready_by = time_ - self.engine.begun, told_by

    def _has_ended(self, event: Ended) -> None:
        """The first process is gone. If it failed, so has the engine; if it ended well and others
        go on, it has put itself into the background, and they are watched on."""
        self._look()
        self.seen.ended = event.time - self.engine.begun
        self.seen.returncode = self.engine.reap()
        if self.seen.returncode != 0 and not self.over:
            self.seen.outcome, self.over = "died", True
        self._look()

    def _look(self) -> None:
        """Counts are taken until the engine is ready. After that, and while it is being stopped,
        a look only tells who is still there."""
        began, now = time.thread_time(), time.monotonic()
        snapshot = self.tree.look(now - self.engine.begun)
        reap_orphans(but=self.engine.pid)
        ended = self.seen.returncode is not None
        if self.seen.ready is None and not self.over:
            self.seen.series.add(
                Moment(
                    snapshot=snapshot,
                    stalled_seconds=stalled_seconds("io"),
                    short_of_cores_seconds=stalled_seconds("cpu"),
                    device_memory_bytes=self.devices.read(),
                )
            )
            # The first look reads every process of the host once: what it costs isn't the rule.
            cost = time.thread_time() - began if len(self.seen.series) > 1 else 0.0
            self.next_look = now + next_interval(cost)
        else:
            self.next_look = now + (_GONE_YET if ended or self.over else _IDLE)
        if ended and snapshot.alive == 0:
            self.over = True

    def _ask_first_token(self, url: str) -> None:
        def ask() -> None:
            found = first_token(url, self.wishes.first_token_body, self.wishes.api_key)
            self.inbox.urgent(Token(found=found))

        threading.Thread(target=ask, daemon=True).start()

    def _sum_up(self) -> None:
        """Where watching a start ends: what it cost until here."""
        now = time.monotonic() - self.engine.begun
        self.seen.watched_until = now if self.seen.ready is None else self.seen.ready
        self.seen.own_cpu_seconds = _own_cpu_seconds() - self.used_before
        self.seen.own_cpu_share = self.seen.own_cpu_seconds / now
        self.seen.device_memory_reason = self.devices.reason

    def _stop(self) -> None:
        """SIGINT as from a terminal, then SIGTERM, then SIGKILL, each with its time, until nothing
        of the engine is left. A second Ctrl-C cuts the waiting short."""
        self._look()
        if not self.tree.processes():
            return
        self.seen.left_over = len(self.tree.processes()) if self.seen.outcome == "died" else 0
        self.over = True
        for number, grace in zip(_STEPS, self.wishes.grace, strict=True):
            self.patience = self.interrupts
            if number == signal.SIGINT:
                self.engine.interrupt(self.tree)
            else:
                send(self.tree, number)
            self.seen.stopped_by = number.name
            if number != signal.SIGKILL:
                self.say(
                    f"ending the engine: {number.name}, processes: {len(self.tree.processes())}, "
                    f"waiting up to {grace:g} s; Ctrl-C again is quicker"
                )
            self.next_look = 0.0
            self._go_on(self._stopped_or_impatient, timeout=grace, even_if_over=True)
            if not self.tree.processes():
                return

    def _stopped_or_impatient(self) -> bool:
        return not self.tree.processes() or self.interrupts > self.patience

    def _all_said(self) -> bool:
        return self.streams == 0 and self.seen.returncode is not None

    def _drain(self) -> None:
        """The last output. What keeps a stream open beyond this isn't ours."""
        self.next_look = time.monotonic() + _DRAIN
        self._go_on(self._all_said, timeout=_DRAIN, even_if_over=True)
        self.seen.broken = tuple(one.stream for one in self.engine.passages if one.broken)


def _own_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
