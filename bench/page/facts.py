"""What was measured on, and how: labels and values for the end of a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.record.records import Run
from bench.sizes import format_size

Facts = list[tuple[str, str]]


def host_facts(run: Run) -> Facts:
    """The machine as the run's host line tells it; what it doesn't tell is left out."""
    line = run.host or {}
    host = line.get("host") or {}
    cpu, memory = host.get("cpu") or {}, host.get("memory") or {}
    pages = memory.get("transparent_huge_pages") or {}
    found: Facts = [
        ("processor", _words(cpu.get("model"), _count(line.get("cores"), "core") + " usable")),
        ("memory", _words(_size(memory.get("total_bytes")), _labelled("huge pages", pages))),
        ("system", _words(host.get("system"), host.get("kernel"), host.get("architecture"))),
        ("virtual machine", _words(host.get("virtual"))),
        ("container", _words(host.get("container"))),
        ("accelerators", _words(*[_accelerator(one) for one in host.get("accelerators") or ()])),
    ]
    for label, facts in (host.get("storage") or {}).items():
        found.append((f"storage {label}", _storage(facts)))
    for label, scheme in (line.get("stores") or {}).items():
        found.append((f"storage {label}", f"a store, {scheme}"))
    versions = {name: text for name, text in (host.get("packages") or {}).items() if text}
    found.append(("versions", ", ".join(f"{name} {text}" for name, text in versions.items())))
    return [(label, text) for label, text in found if text.strip()]


def method_facts(run: Run) -> Facts:
    """How the run was taken, with the command that takes it again."""
    plan, host = run.plan or {}, run.host or {}
    found: Facts = [
        ("model", _words(plan.get("model"), _size(plan.get("size")), plan.get("dtype"))),
        ("started", _words(plan.get("started"))),
        ("command", _words(host.get("command"))),
        ("passes", _words(plan.get("passes"))),
        ("order", f"shuffled in each pass, seed {plan['seed']}" if "seed" in plan else ""),
        ("ceilings", "measured in the same passes, read through the same memory"),
        (
            "cache state",
            "asked for, brought about, then verified by the resident pages before and the bytes "
            "that came from the device during; what wasn't as asked stands apart",
        ),
    ]
    for label, words in (host.get("coldness") or {}).items():
        found.append((f"cold on {label}", _words(words)))
    for label, how in (host.get("residency") or {}).items():
        found.append((f"residency on {label}", _words(how)))
    found.append(
        (
            "the bytes",
            "each way's tensors are read whole inside the timed region, and compared with a "
            "reference outside of it",
        )
    )
    return [(label, text) for label, text in found if text]


def _storage(facts: Mapping[str, Any]) -> str:
    block = facts.get("block") or {}
    ahead = block.get("read_ahead_kb")
    return _words(
        facts.get("fs_type"),
        f"on {block['disk']}" if block.get("disk") else "",
        block.get("model"),
        f"read-ahead {ahead} KiB" if ahead is not None else "",
        f"scheduler {block['scheduler']}" if block.get("scheduler") else "",
        f"mounted {(facts.get('options') or {}).get('mount')}" if facts.get("options") else "",
    )


def _accelerator(one: object) -> str:
    return str(one.get("name") or one.get("model") or "") if isinstance(one, Mapping) else str(one)


def _labelled(label: str, values: Mapping[str, Any]) -> str:
    return f"{label} {values['enabled']}" if values.get("enabled") else ""


def _count(number: object, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}" if number is not None else f"? {noun}s"


def _size(nbytes: object) -> str:
    return format_size(int(nbytes)) if isinstance(nbytes, int) else ""


def _words(*parts: object) -> str:
    return ", ".join(str(part) for part in parts if part not in (None, ""))
