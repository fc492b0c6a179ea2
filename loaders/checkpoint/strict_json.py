"""JSON as the safetensors library reads it (serde_json), from Python's own parser.

Python's json is laxer in a few places that decide whether two readers agree: repeated keys (last
one wins), NaN, lone surrogates, numbers beyond 64 bits, "-0" as an integer, deep nesting.
"""

from __future__ import annotations

import json
import math
import re
import sys
from typing import Any

MAX_DEPTH = 127  # serde_json's recursion limit of 128 refuses the 128th level
U64_MAX = 2**64 - 1
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_MINUS_ZERO = re.compile(r"-0(?![0-9.eE])")


class StrictJsonError(ValueError):
    """The bytes aren't the JSON that the reference accepts."""


class Repeated(dict[str, Any]):
    """An object in which a key stands more than once: the last value wins, as in any dict, but
    `pairs` keeps them all."""

    pairs: list[tuple[str, Any]]

    @property
    def keys_repeated(self) -> list[str]:
        seen: set[str] = set()
        twice: dict[str, None] = {}
        for key, _ in self.pairs:
            if key in seen:
                twice[key] = None
            seen.add(key)
        return list(twice)


def loads(raw: bytes) -> Any:
    """The value; objects with repeated keys come as `Repeated`. StrictJsonError with the place."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StrictJsonError(f"not UTF-8 at byte {error.start}") from error
    # The hook costs a call per number, so it is only set where "-0" occurs at all.
    parse_int = _integer if _MINUS_ZERO.search(text) else None
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_float=_float,
            parse_int=parse_int,
        )
    except json.JSONDecodeError as error:
        raise StrictJsonError(f"{error.msg} at character {error.pos}") from error
    except RecursionError as error:
        raise StrictJsonError("nested too deeply") from error
    except StrictJsonError:
        raise
    except ValueError as error:
        most = sys.get_int_max_str_digits()
        raise StrictJsonError(f"it holds a number of more than {most:,} digits") from error
    if _SURROGATE.search(text):
        _refuse_lone_surrogates(value)
    return value


def fault_of_ignored(value: Any, depth: int) -> str | None:
    """What the reference would refuse in a value that it otherwise skips: `depth` is the nesting
    level at which `value` stands (1 for the whole document)."""
    stack = [(value, depth)]
    while stack:
        item, level = stack.pop()
        if isinstance(item, (dict, list)):
            if level > MAX_DEPTH:
                return "nested too deeply"
            children = item.values() if isinstance(item, dict) else item
            if isinstance(item, Repeated):
                children = [child for _, child in item.pairs]
            stack.extend((child, level + 1) for child in children)
        elif type(item) is int and abs(item) > U64_MAX:
            try:
                float(item)
            except OverflowError:
                return "a number is out of range"
    return None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    if len(plain) == len(pairs):
        return plain
    repeated = Repeated(plain)
    repeated.pairs = pairs
    return repeated


def _integer(digits: str) -> int | float:
    return -0.0 if digits == "-0" else int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise StrictJsonError(f"number out of range: {digits[:40]}")
    return value


def _refuse_constant(name: str) -> None:
    raise StrictJsonError(f"{name} is not JSON")


def _refuse_lone_surrogates(value: Any) -> None:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            try:
                item.encode("utf-8")
            except UnicodeEncodeError as error:
                raise StrictJsonError("a \\u escape is half of a surrogate pair") from error
        elif isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, dict):
            pairs = item.pairs if isinstance(item, Repeated) else item.items()
            for key, child in pairs:
                stack.append(key)
                stack.append(child)
