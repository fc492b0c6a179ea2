"""What differs around two runs: the host and the settings. Said first, because then a difference
between the figures may have that cause. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bench.given import Given

PASSING = {
    "available_bytes",
    "cached_bytes",
    "free_bytes",
    "swap_free_bytes",
    "usable_bytes",
    "path",
}
"""What changes on one host from minute to minute, or says nothing of it."""

SETTINGS = ("model", "size", "dtype", "passes", "smoke")


@dataclass(frozen=True, slots=True, kw_only=True)
class Differs:
    """One thing, and what it was on either side; None where a side doesn't tell."""

    what: str
    a: Any
    b: Any


def differences(a: Given, b: Given) -> list[Differs]:
    """Settings, then host facts, each by its path: `cpu.model`, `storage.nvme.fs_type`. Of two
    storages of one run, what lies below them, as `storage`."""
    one, other = dict(_facts(a)), dict(_facts(b))
    return [
        Differs(what=key, a=one.get(key), b=other.get(key))
        for key in dict.fromkeys([*one, *other])
        if one.get(key) != other.get(key)
    ]


def _facts(given: Given) -> Iterator[tuple[str, Any]]:
    plan, line = given.run.plan or {}, given.run.host or {}
    for name in SETTINGS:
        yield name, plan.get(name)
    yield "cores", line.get("cores")
    yield "command", line.get("command")
    host = dict(line.get("host") or {})
    storages = host.pop("storage", None) or {}
    yield from _flat(host, "")
    if given.label is not None:
        yield from _flat(storages.get(given.label) or {}, "storage.")
        return
    for label, facts in storages.items():
        yield from _flat(facts, f"storage.{label}.")


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if name in PASSING:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
            for number, one in enumerate(value):
                inner = one if isinstance(one, Mapping) else {"": one}
                yield from _flat(inner, f"{prefix}{name}.{number}.")
        else:
            yield f"{prefix}{name}", value
