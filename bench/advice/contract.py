"""What a piece of advice says, and what it is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.record.records import Run
from bench.record.stats import paired_saving
from bench.record.summary import GB, ByPass, Group, Row, ceilings, rows
from bench.words.engine_settings import NEWEST, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Seconds saved of `of` seconds for the measured bytes: the median over `n` passes, between
    bounds of which `kind` says what they are. `at_most` marks an upper bound."""

    seconds: float
    of: float
    low: float
    high: float
    n: int
    kind: str
    at_most: bool = False

    @property
    def shown(self) -> bool:
        """Whether anything is saved, as far as the passes can tell."""
        return self.n > 1 and self.low > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """`seen` are the figures, `do` lines to type or to set, `cost` what it costs or risks. `saving`
    is None where the run couldn't measure one: then the words say so."""

    name: str
    title: str
    seen: str
    do: tuple[str, ...]
    cost: str
    saving: Saving | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What every kind of advice looks at: the run, its rows of reading without twins and without
    those in another cache state than asked, the ceilings, and the engine's version."""

    run: Run
    reading: tuple[Row, ...]
    tops: Mapping[Group, ByPass]
    engine: Version = NEWEST

    @property
    def host(self) -> Mapping[str, Any]:
        """What the host line says of the machine; empty if nothing."""
        return (self.run.host or {}).get("host") or {}

    def storage(self, label: str | None) -> Mapping[str, Any]:
        """What the host line says of a storage; empty if nothing."""
        return (self.host.get("storage") or {}).get(label) or {}

    @property
    def labels(self) -> list[str]:
        """The storages that were read cold."""
        found = [row.group.storage for row in self.reading if row.group.cache == "cold"]
        return [label for label in dict.fromkeys(found) if label is not None]

    def ways(self, label: str, cache: str = "cold") -> list[Row]:
        """The rows of a storage in a cache state, the fastest first; made-up values aside."""
        where = label, cache
        found = [
            row
            for row in self.reading
            if (row.group.storage, row.group.cache) == where and row.loader != "dummy"
        ]
        return sorted(found, key=lambda row: -row.rate.median)


def see(run: Run, engine: Version = NEWEST) -> Seen:
    """What of a run advice looks at, for a version of the engine (`(0, 33)`)."""
    reading = tuple(row for row in rows(run) if not row.apart and not row.twin)
    return Seen(run=run, reading=reading, tops=ceilings(run), engine=engine)


def seconds(rates: ByPass, nbytes: int) -> ByPass:
    """GB/s by pass as seconds for so many bytes."""
    return {number: nbytes / GB / rate for number, rate in rates.items() if rate}


def saving(
    slow: Mapping[int, float], fast: Mapping[int, float], *, at_most: bool = False
) -> Saving | None:
    """What going from one to the other saves (seconds by pass), paired by pass; None where they
    share none, or where the passes don't show that anything is."""
    found = paired_saving(slow, fast)
    if found is None:
        return None
    made = Saving(
        seconds=found.median,
        of=found.of,
        low=found.low,
        high=found.high,
        n=found.n,
        kind=found.kind,
        at_most=at_most,
    )
    return made if made.shown else None


def between(slow: Row, fast: Row, *, at_most: bool = False) -> Saving | None:
    """What the one row's way saves against the other's, for the other's bytes."""
    return saving(
        seconds(slow.rates, slow.nbytes), seconds(fast.rates, slow.nbytes), at_most=at_most
    )


def rate_words(row: Row) -> str:
    """`1.70 GB/s (1.38 to 1.73 in 3 passes)`."""
    found = row.rate
    spread = f" ({found.low:.2f} to {found.high:.2f} in {found.n} passes)" if found.n > 1 else ""
    return f"{found.median:.2f} GB/s{spread}"


def engine_options(row: Row) -> dict[str, Any]:
    """A row's options without the mark of an A/A twin."""
    return {key: value for key, value in row.options.items() if key != "twin"}


def first(rows_: Sequence[Row], loader: str) -> Row | None:
    """The first row of a loader, None without one."""
    return next((row for row in rows_ if row.loader == loader), None)
