"""One line of a record, held against the table of its version. Pure.

A value that doesn't fit makes a sample no sample; in a plan, a host line or a sample's details it
is taken as unknown, and named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.record.shapes import ANY, MOST, VERSIONS, Each, Fields, Items, Kind, Shape

DEEPEST = 40
"""Levels of lists and mappings within one line: what this suite writes has seven."""

NOTHING = "nothing"
NAMED = 3
"""How many faults of one sample are named."""


class LineError(ValueError):
    """A line that is no record: what was expected, what was found."""


class NewerError(LineError):
    """A line of a version that isn't known yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A value that doesn't fit: where (`cache.state`), what was expected, what was found."""

    where: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.where}: expected {self.expected}, found {self.found}"


def parsed(raw: bytes) -> tuple[dict[str, Any], list[Fault]]:
    """The line without what doesn't fit, and what that was. What is null is left out where the
    table knows its name. Lines of a kind that isn't known pass. LineError, NewerError."""
    try:
        line = json.loads(raw)
    except RecursionError:
        raise LineError("lists and mappings too deep within each other") from None
    except UnicodeDecodeError as error:
        raise LineError(f"no JSON: {error.reason} at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise LineError(f"no JSON: {error.msg} at letter {error.pos}") from error
    except ValueError as error:  # a number of thousands of digits
        raise LineError(f"no JSON: {error}") from error
    if not isinstance(line, dict):
        raise LineError(f"expected a mapping, found {short(line)}")
    if _too_deep(line):
        raise LineError("lists and mappings too deep within each other")
    lines, kind = _version(line.get("schema")), line.get("kind")
    if not isinstance(kind, str):
        raise LineError(f"kind: expected plan, host or sample, found {short(kind)}")
    shape = lines.of(kind)
    if shape is None:
        return line, []
    kept, faults = cleaned(line, shape)
    if kind == "sample":
        if faults:
            raise LineError("; ".join(map(str, faults[:NAMED])))
        kept["details"], faults = cleaned(kept.get("details", {}), lines.details, "details")
    return kept, faults


def _version(schema: Any) -> Any:
    newest = max(VERSIONS)
    if isinstance(schema, bool) or not isinstance(schema, int):
        raise LineError(f"schema: expected a number up to {newest}, found {short(schema)}")
    if schema > newest:
        raise NewerError(f"schema {short(schema)} is newer than this version's {newest}")
    if schema not in VERSIONS:
        raise LineError(f"schema: expected a number from 1 to {newest}, found {short(schema)}")
    return VERSIONS[schema]


def cleaned(value: Any, shape: Shape, where: str = "") -> tuple[Any, list[Fault]]:
    """The value without what doesn't fit (None where it doesn't itself), and what that was."""
    faults: list[Fault] = []
    return _clean(value, shape, where, faults), faults


def _clean(value: Any, shape: Shape, where: str, faults: list[Fault]) -> Any:
    wrong = _wrong(value, shape)
    if wrong is not None:
        faults.append(Fault(where=where, expected=wrong, found=short(value)))
        return None
    if isinstance(shape, Kind):
        return value
    if isinstance(shape, Items):
        kept = [_clean(one, shape.of, f"{where}[{n}]", faults) for n, one in enumerate(value)]
        return [one for one in kept if one is not None]
    made = {}
    for name, one in value.items():
        inner = shape.of if isinstance(shape, Each) else shape.known.get(name, ANY)
        if inner is ANY:
            made[name] = one
        elif one is not None:
            made[name] = _clean(one, inner, _within(where, name), faults)
    if isinstance(shape, Each) and shape.of is not ANY:
        return {name: one for name, one in made.items() if one is not None}
    if isinstance(shape, Fields):
        made = {
            name: one for name, one in made.items() if one is not None or name not in shape.known
        }
        faults += [
            Fault(where=_within(where, name), expected=_words(shape.known[name]), found=NOTHING)
            for name in sorted(shape.needed)
            if value.get(name) is None
        ]
    return made


def _within(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _wrong(value: Any, shape: Shape) -> str | None:
    """What was expected instead; None if it fits, as far as the value itself goes."""
    if isinstance(shape, Kind):
        fits = shape.fits(value)
    else:
        fits = isinstance(value, list if isinstance(shape, Items) else dict)
    return None if fits else _words(shape)


def _words(shape: Shape) -> str:
    if isinstance(shape, Kind):
        return shape.words
    return "a list" if isinstance(shape, Items) else "a mapping"


def short(value: Any) -> str:
    """A stranger's value, as far as it helps to find it."""
    if value is None:
        return NOTHING
    if isinstance(value, list | dict):
        return f"a {'list' if isinstance(value, list) else 'mapping'} of {len(value)}"
    if isinstance(value, int) and abs(value) > MOST:
        return "a number beyond all sense"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for one in level for inner in _inner(one)]
        if not level:
            return False
    return True


def _inner(value: Any) -> Iterator[Any]:
    values = value.values() if isinstance(value, dict) else value
    return (one for one in values if isinstance(one, list | dict))
