"""Who failed, in words: from what the ranks said, who fell silent first, and torchrun's report.

Pure: texts and values in, a sentence out.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loaders.checkpoint.text import count, printable

_FAILED = re.compile(
    r"rank\s*:\s*(?P<rank>\d+) \(local_rank: \d+\)\s+exitcode\s*:\s*(?P<code>-?\d+) "
    r"\(pid: (?P<pid>\d+)\)"
)
_FIRST = re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: \d+ \(pid: (?P<pid>\d+)\)")
_SIGNALLED = re.compile(r"Sending process (\d+) closing signal")

HINTS = {
    "SIGBUS": "a mapped file was cut short, or its storage failed",
    "SIGKILL": "out of memory, or killed from outside",
}
STATES = {
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "D": "waiting for the storage or the kernel",
    "S": "asleep",
    "R": "running",
}
"""Letters of /proc/<pid>/stat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """A rank as it is named in messages."""

    rank: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"rank {self.rank} ({printable(self.host)}, pid {self.pid})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A rank that failed, in the order in which it was noticed: it said why (`text`; `peer` where
    the collective failed, which is mostly another's fault), or it fell silent (None)."""

    who: Who
    text: str | None = None
    peer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """A rank that wasn't done in time: the last that was heard of it, how many exchanges it has
    begun, and its process's state as /proc has it."""

    who: Who
    stage: str
    rounds: int = 0
    state: str | None = None


def exit_codes(report: str) -> dict[int, int]:
    """pid -> exit code (negative for a signal) of the failed ranks that torchrun names."""
    found = {int(one["pid"]): int(one["code"]) for one in _FIRST.finditer(report)}
    return found | {int(one["pid"]): int(one["code"]) for one in _FAILED.finditer(report)}


def ended_by_torchrun(report: str) -> set[int]:
    """The pids that torchrun itself ended, because another one had failed."""
    return {int(pid) for pid in _SIGNALLED.findall(report)}


def blame(events: Sequence[Event], report: str) -> str:
    """One sentence about the rank that failed first, and how the others fared. A rank that fell
    silent by itself comes before one whose collective failed, whoever was noticed first."""
    codes, victims = exit_codes(report), ended_by_torchrun(report)
    own = [one for one in events if not one.peer]
    causes = [one for one in own if one.text is not None or one.who.pid not in victims]
    if causes:
        first = causes[0]
        others = [one.who.rank for one in events if one is not first]
        return f"{_said(first, codes)}{_then(others)}"
    lost = next((one for one in events if one.peer), None)
    if lost is not None:
        return f"{lost.who}: {lost.text}; no rank of this node ended before: look at the others"
    return "the ranks ended, and none of them said why"


def _said(event: Event, codes: Mapping[int, int]) -> str:
    if event.text is not None:
        return f"{event.who}: {printable(event.text)}"
    code = codes.get(event.who.pid)
    if code is None:
        return f"{event.who} ended without a word"
    if code < 0:
        known = {number.value: number.name for number in signal.Signals}
        name = known.get(-code, f"signal {-code}")
        hint = f" ({HINTS[name]})" if name in HINTS else ""
        return f"{event.who} ended by {name}{hint}"
    return f"{event.who} ended with exit code {code}"


def _then(others: Sequence[int]) -> str:
    if not others:
        return ""
    names = ", ".join(map(str, sorted(set(others))))
    return f"; with it ended rank{'s' if len(set(others)) > 1 else ''} {names}"


def hung(stuck: Sequence[Stuck], timeout: float, done: int, world: int) -> str:
    """One sentence about the ranks that didn't get done within `timeout` seconds. Where they wait
    for each other, those are named that are stopped, or else have begun the fewest exchanges."""
    stopped = [one for one in stuck if one.state in {"T", "t"}]
    fewest = min(one.rounds for one in stuck)
    behind = stopped or [one for one in stuck if one.rounds == fewest]
    named = "; ".join(
        f"{one.who}: {one.stage}"
        + (f", {STATES.get(one.state, one.state)}" if one.state is not None else "")
        for one in behind[:4]
    )
    more = f"; and {count(len(behind) - 4, 'other rank')}" if len(behind) > 4 else ""
    waiting = len(stuck) - len(behind)
    wait = f"; {count(waiting, 'rank')} waited for it" if waiting else ""
    return (
        f"no end within {timeout:g} s: {named}{more}{wait}; {done} of {world} ranks were done "
        "and all were ended"
    )
