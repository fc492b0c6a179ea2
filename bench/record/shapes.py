"""What each line of a record holds, one table for each version of the schema. Pure.

Records come from strangers too: edited by hand, cut, written by other programs. What a line says is
held against these tables where it is read, so that whoever reckons with it finds numbers that are
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MOST = 2**63
MOST_PASSES = 10_000
SHORTEST, LONGEST = 1e-9, 1e10
"""Seconds: one tick of the clock, and three hundred years."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A single value: what an error calls it, and whether a value is one."""

    words: str
    fits: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Items:
    """A list of values of one shape."""

    of: Shape


@dataclass(frozen=True, slots=True)
class Each:
    """A mapping from any names to values of one shape."""

    of: Shape


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping of which these names are known; what it has beyond them passes. Without one of
    those `needed` it is none."""

    known: Mapping[str, Shape]
    needed: frozenset[str] = frozenset()


Shape = Kind | Items | Each | Fields


def _number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -MOST <= value <= MOST  # what is no number is neither


def _whole(value: Any, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST


def _one_of(*names: str) -> Kind:
    return Kind(f"one of {', '.join(names)}", lambda value: value in names)


ANY = Kind("anything", lambda value: True)
TEXT = Kind("text", lambda value: isinstance(value, str))
NAME = Kind("a name", lambda value: isinstance(value, str) and bool(value))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
NUMBER = Kind("a number", _number)
COUNT = Kind("a whole number from 0 on", _whole)
PASSES = Kind("a number of passes", lambda value: _whole(value) and value <= MOST_PASSES)
CORES = Kind("a whole number from 1 on", lambda value: _whole(value, 1))
SHARE = Kind("a share from 0 to 1", lambda value: _number(value) and 0 <= value <= 1.01)
SECONDS = Kind("seconds", lambda value: _number(value) and -1e-6 <= value <= LONGEST)
"""Differences of stamps may be a rounding error below 0."""

WHOLE_SECONDS = Kind(
    "seconds, 0 or at least a nanosecond",
    lambda value: _number(value) and (value == 0 or SHORTEST <= value <= LONGEST),
)
SCALAR = Kind(
    "text, a number, true or false", lambda value: isinstance(value, str | bool) or _number(value)
)

STORAGE_FACTS = Fields(
    {
        "fs_type": TEXT,
        "path": TEXT,
        "mount_point": TEXT,
        "options": Each(ANY),
        "block": Fields(
            {
                "disk": TEXT,
                "model": TEXT,
                "read_ahead_kb": COUNT,
                "scheduler": TEXT,
                "numa_node": NUMBER,
            }
        ),
    }
)

PLAN_1 = Fields(
    {
        "started": TEXT,
        "model": TEXT,
        "size": COUNT,
        "dtype": TEXT,
        "passes": PASSES,
        "smoke": FLAG,
        "notes": Items(TEXT),
        "cases": Items(TEXT),
    }
)

HOST_1 = Fields(
    {
        "command": TEXT,
        "cores": CORES,
        "coldness": Each(TEXT),
        "residency": Each(TEXT),
        "stores": Each(TEXT),
        "host": Fields(
            {
                "cpu": Fields({"model": TEXT, "numa_nodes": Items(ANY)}),
                "memory": Fields(
                    {
                        "total_bytes": COUNT,
                        "usable_bytes": COUNT,
                        "transparent_huge_pages": Each(ANY),
                    }
                ),
                "storage": Each(STORAGE_FACTS),
                "shared_memory": Fields({"total_bytes": COUNT}),
                "process_limits": Each(Each(ANY)),
                "cgroup_memory_limits": Items(ANY),
                "accelerators": Items(ANY),
                "packages": Each(ANY),
            }
        ),
    }
)

STAGES_1 = ("open", "allocate", "read", "consume", "transfer", "slice", "quantise", "layout")
CACHE_1 = Fields(
    {
        "requested": NAME,
        "resident_before": SHARE,
        "resident_after": SHARE,
        "device_read_bytes": COUNT,
        "group_read_bytes": COUNT,
        "state": _one_of("cold", "warm", "mixed", "unverified", "none"),
    },
    frozenset({"requested"}),
)
COMPANY_1 = (
    "disk_read_bytes",
    "disk_written_bytes",
    "cpu_seconds",
    "stolen_seconds",
    "io_pressure_seconds",
    "cpu_pressure_seconds",
    "memory_pressure_seconds",
    "load",
)

SAMPLE_1 = Fields(
    {
        **dict.fromkeys(("case", "phase", "loader", "device", "layout"), NAME),
        **dict.fromkeys(("model", "dtype", "reason", "verified_reason"), TEXT),
        "options": Each(SCALAR),
        "threads": COUNT,
        "size": COUNT,
        "storage": Fields(
            {"label": NAME, "file_system": TEXT, "mount": TEXT, "device": TEXT},
            frozenset({"label"}),
        ),
        "pass": COUNT,
        "status": _one_of("ok", "failed", "skipped"),
        "smoke": FLAG,
        "bytes": COUNT,
        "seconds": Fields({**dict.fromkeys(STAGES_1, SECONDS), "total": WHOLE_SECONDS}),
        "cache": CACHE_1,
        **dict.fromkeys(
            ("runner_seconds", "child_seconds", "wall_seconds", "cpu_seconds", "system_seconds"),
            SECONDS,
        ),
        **dict.fromkeys(("minor_faults", "major_faults"), COUNT),
        **dict.fromkeys(
            ("peak_rss_bytes", "rss_before_bytes", "rss_anon_bytes", "rss_file_bytes"), COUNT
        ),
        "ownership": NAME,
        "verified": FLAG,
        "company": Fields({"disk": TEXT, **dict.fromkeys(COMPANY_1, NUMBER)}),
        "details": Each(ANY),
    },
    frozenset({"case", "phase", "loader", "model", "size", "dtype", "pass", "status", "cache"}),
)

DETAILS_1 = Fields(
    {
        "notes": Items(TEXT),
        "counts": Each(NUMBER),
        "settings": Each(ANY),
        "needed": Each(COUNT),
        "seconds": Each(NUMBER),
        "by_rule": Each(Each(NUMBER)),
        "ranks": Items(Fields({"rank": COUNT, "done": SECONDS})),
        "absent_bytes": NUMBER,
        "compile_seconds": SECONDS,
        **dict.fromkeys(
            ("fetched_bytes", "tensor_bytes", "tensors", "files", "block", "threads"), COUNT
        ),
        "huge_kb": NUMBER,
        "engine": TEXT,
        "fell_back": Items(TEXT),
    }
)
"""What readers reckon with; what else was found out on the way may stand there too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """One version of the schema: the kinds of lines, and what a sample's details hold."""

    plan: Fields
    host: Fields
    sample: Fields
    details: Fields

    def of(self, kind: str) -> Fields | None:
        """The shape of a kind of line; None for one that this version lacks."""
        return {"plan": self.plan, "host": self.host, "sample": self.sample}.get(kind)


VERSIONS: dict[int, Lines] = {
    1: Lines(plan=PLAN_1, host=HOST_1, sample=SAMPLE_1, details=DETAILS_1),
}
"""By the schema that a line names. A new version is a new row; the old ones stay, so that their
runs load for good."""
