"""All advice for a run: the kinds, in one list, and the order in which it is told."""

from __future__ import annotations

from collections.abc import Callable

from bench.advice import (
    huge_pages,
    loader,
    locked_memory,
    numa,
    page_cache,
    quantise_before,
    read_ahead,
    shared_memory,
    snapshot,
    staging,
    storage,
    threads,
    useless_threads,
    warm_up,
)
from bench.advice.contract import Advice, Saving, Seen, see
from bench.record.records import Run
from bench.words.engine_settings import NEWEST, Version
from bench.words.findings import SMALL

KINDS: tuple[Callable[[Seen], Advice | None], ...] = (
    loader.find,
    storage.find,
    warm_up.find,
    staging.find,
    snapshot.find,
    quantise_before.find,
    threads.find,
    useless_threads.find,
    read_ahead.find,
    huge_pages.find,
    locked_memory.find,
    page_cache.find,
    shared_memory.find,
    numa.find,
)
MOST = 7


def advise(run: Run, engine: Version = NEWEST) -> list[Advice]:
    """At most MOST pieces, those first that save most seconds, then those whose seconds the run
    couldn't measure. None from a smoke run or one of a few MiB, whose seconds mean nothing."""
    plan = run.plan or {}
    if plan.get("smoke") or 0 < int(plan.get("size") or 0) < SMALL:
        return []
    seen = see(run, engine)
    found = [advice for kind in KINDS if (advice := kind(seen)) is not None]
    return sorted(found, key=lambda one: -(one.saving.seconds if one.saving else 0.0))[:MOST]


def saving_words(saved: Saving | None) -> str:
    """`saves 1.2 s of 3.4 s (0.9 to 1.5, range of 3 passes)`."""
    if saved is None:
        return "what it saves wasn't measured"
    most = "saves at most" if saved.at_most else "saves"
    return (
        f"{most} {saved.seconds:.2f} s of {saved.of:.2f} s ({saved.low:.2f} to {saved.high:.2f}, "
        f"{saved.kind} of {saved.n} passes)"
    )


def first_words(run: Run, most: int = 3) -> list[str]:
    """What stands at the end of a run's table: a line for each of the first, what to type, and the
    command for the rest; empty where there is nothing to advise."""
    found = advise(run)
    if not found:
        return []
    lines = [f"To do: {one.title}: {saving_words(one.saving)}: {one.do[0]}" for one in found[:most]]
    rest = len(found) - len(lines)
    more = f"{rest} more, and what each costs" if rest else "What each costs"
    return [*lines, f"{more}: coldload advise {run.path.parent}"]
