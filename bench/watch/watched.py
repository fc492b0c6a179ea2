"""What a user asked for of a watched start, and what was seen of it."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Literal

from bench.watch.probes import FirstToken
from bench.watch.reader import Reader
from bench.watch.samples import Series
from bench.watch.stages import Stages

GRACE = (10.0, 5.0, 5.0)
"""Seconds that an engine is given after SIGINT, after SIGTERM and after SIGKILL."""

Outcome = Literal["ended", "interrupted", "timeout", "died"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the user asked for. `stdout` and `stderr` are descriptors of ours that the engine's
    output goes to; `api_key` is sent with what the server is asked; `secrets` are values that
    nothing of ours may show."""

    ready_url: str | None = None
    first_token_url: str | None = None
    first_token_body: str | None = None
    api_key: str | None = field(default=None, repr=False)
    secrets: Set[str] = field(default=frozenset(), repr=False)
    until_ready: bool = False
    timeout: float | None = None
    stdout: int = 1
    stderr: int = 2
    grace: tuple[float, float, float] = GRACE


@dataclass(slots=True)
class Watched:
    """What was seen of one start. Times in seconds since the engine was started; None where it
    didn't come to that."""

    command: tuple[str, ...]
    begun_at: float
    reader: Reader
    secrets: Set[str] = field(default=frozenset(), repr=False)
    stages: Stages = field(default_factory=Stages)
    series: Series = field(default_factory=Series)
    by_url: bool = False
    ready: float | None = None
    ready_by: str | None = None
    first_token: FirstToken | None = None
    first_token_at: float | None = None
    ended: float | None = None
    returncode: int | None = None
    outcome: Outcome = "ended"
    left_over: int = 0
    stopped_by: str | None = None
    device_memory_reason: str | None = None
    broken: tuple[str, ...] = ()
    watched_until: float = 0.0
    own_cpu_seconds: float = 0.0
    own_cpu_share: float | None = None
