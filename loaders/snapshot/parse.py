"""A snapshot's header as it was found: every field of its type and within its bounds, nothing
twice, every parameter where the one before it ends. Anything else was never written by us."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import xxhash

from loaders.checkpoint import strict_json
from loaders.checkpoint.dtypes import BY_NAME
from loaders.checkpoint.strict_json import Repeated, StrictJsonError
from loaders.checkpoint.text import listed, quoted, shown
from loaders.snapshot.format import (
    ALIGN,
    DEVICE_LAYOUTS,
    HEAD,
    MAGIC,
    MAX_TEXT,
    VERSION,
    Entry,
    Header,
    HeaderError,
    Layout,
    Made,
    Source,
    up,
)

_MOST: Final = 2**63 - 1
"""Of any number: what a file's offset or a tensor's length can be."""

_DIMENSIONS: Final = 64
"""Of a tensor, as torch has them."""

_DIGEST: Final = re.compile("[0-9a-f]{32}")
Fields = Mapping[str, tuple[type, ...]]

_LAYOUT: Fields = {"tp": (int,), "pp": (int,), "ep": (int,), "rank": (int,)}
_SOURCE: Fields = {
    "name": (str,),
    "format": (str,),
    "files": (int,),
    "bytes": (int,),
    "tensors": (int,),
    "structure": (str,),
    "content": (str,),
}
_MADE: Fields = {"coldload": (str,), "torch": (str,), "seconds": (int, float)}
_ENTRY: Fields = {
    "name": (str,),
    "dtype": (str,),
    "shape": (list,),
    "offset": (int,),
    "nbytes": (int,),
    "xxh3": (str,),
    "of": (list, type(None)),
}
_WHOLE: Fields = {
    "layout": (dict, Repeated),
    "processing": (str,),
    "device_layout": (str,),
    "quantisation": (str, type(None)),
    "source": (dict, Repeated),
    "made": (dict, Repeated),
}


def head_of(head: bytes, size: int) -> tuple[int, int]:
    """From a file's first HEAD.size bytes and its size: (bytes of the JSON text, its checksum).
    HeaderError for what isn't a finished snapshot of this version, or has another size."""
    if not head.strip(b"\0"):
        raise HeaderError("half-written", "its header was never written: making it didn't end")
    if not head.startswith(MAGIC):
        raise HeaderError("not-weights", f"no snapshot (first bytes {head[:8].hex(' ')})")
    if len(head) < HEAD.size:
        raise HeaderError("half-written", f"{size:,} bytes, its header alone has {HEAD.size}")
    _, version, zero, length, check, expected = HEAD.unpack(head)
    if version != VERSION:
        raise HeaderError(
            "other-version", f"a snapshot of version {version}; this coldload reads {VERSION}"
        )
    if size != expected:
        how = "half-written" if size < expected else "size-mismatch"
        raise HeaderError(how, f"expected {expected:,} bytes, found {size:,}")
    if zero or not 0 < length <= min(MAX_TEXT, size - HEAD.size) or (HEAD.size + length) % ALIGN:
        raise _corrupt(f"a header of {length:,} bytes in a file of {size:,}")
    return length, check


def parsed(text: bytes, check: int, size: int) -> Header:
    """The header in its JSON text, of a file of `size` bytes. HeaderError where the text isn't what
    was written, or says what no header can."""
    if xxhash.xxh3_64_intdigest(text) != check:
        raise _corrupt("its header isn't what was written (checksum)")
    try:
        value = strict_json.loads(text)
    except StrictJsonError as error:
        raise _corrupt(f"its header isn't JSON: {error}") from None
    if not isinstance(value, dict) or not isinstance(value.get("parameters"), list):
        raise _corrupt(f"the header: expected an object with parameters, found {quoted(value)}")
    if isinstance(value, Repeated) and "parameters" in value.keys_repeated:
        raise _corrupt("the header: parameters stands in it twice")
    every = value.pop("parameters")
    header = replace(
        facts_of(value),
        parameters=tuple(_entry(one, place) for place, one in enumerate(every)),
        size=size,
    )
    _check_places(header, first=HEAD.size + len(text))
    return header


def facts_of(value: Any) -> Header:
    """A header without its parameters, from the JSON of all the rest. HeaderError."""
    whole = _object(value, _WHOLE, "the header")
    header = Header(
        layout=Layout(**_object(whole["layout"], _LAYOUT, "layout")),
        processing=_one_of(whole["processing"], ("pre", "post"), "processing"),
        device_layout=_one_of(whole["device_layout"], DEVICE_LAYOUTS, "device_layout"),
        quantisation=whole["quantisation"],
        source=Source(**_object(whole["source"], _SOURCE, "source")),
        made=Made(**_object(whole["made"], _MADE, "made")),
    )
    _check_layout(header.layout)
    for digest in (header.source.structure, header.source.content):
        check_digest(digest, "source")
    return header


def _corrupt(what: str) -> HeaderError:
    return HeaderError("corrupt-header", what)


def _object(value: Any, fields: Fields, where: str) -> dict[str, Any]:
    """`value` as an object with these fields, no more, each once. Numbers aren't negative."""
    if not isinstance(value, dict):
        raise _corrupt(f"{where}: expected an object, found {quoted(value)}")
    if isinstance(value, Repeated):
        raise _corrupt(f"{where}: {listed(value.keys_repeated)} stands in it twice")
    if value.keys() != fields.keys():
        raise _corrupt(
            f"{where}: expected {listed(sorted(fields), 20)}, found {listed(sorted(value), 20)}"
        )
    for key, kinds in fields.items():
        found = value[key]
        number = type(found) in (int, float)
        if type(found) not in kinds or (number and not 0 <= found <= _MOST):
            raise _corrupt(f"{where}: {key}: {quoted(found)} is none that it can be")
    return value


def _one_of(value: str, allowed: tuple[str, ...], where: str) -> str:
    if value not in allowed:
        raise _corrupt(f"{where}: expected {listed(allowed)}, found {quoted(value)}")
    return value


def _entry(value: Any, place: int) -> Entry:
    found = _object(value, _ENTRY, f"parameter {place}")
    name, dtype = found["name"], found["dtype"]
    row = BY_NAME.get(dtype)
    if row is None or row.itemsize is None:
        raise HeaderError("unsupported-dtype", f"{shown(name)}: unknown dtype {quoted(dtype)}")
    shape = _shape(found["shape"], row.itemsize, name)
    of = _shape(found["of"], row.itemsize, name) if found["of"] is not None else None
    if found["nbytes"] != math.prod(shape) * row.itemsize:
        raise _corrupt(f"{shown(name)}: {dtype} {list(shape)} isn't {found['nbytes']} bytes")
    check_digest(found["xxh3"], shown(name))
    return Entry(**{**found, "shape": shape, "of": of})


def _shape(found: list[Any], itemsize: int, name: str) -> tuple[int, ...]:
    if len(found) > _DIMENSIONS:
        raise _corrupt(f"{shown(name)}: {len(found):,} dimensions, of {_DIMENSIONS} at most")
    for length in found:
        if type(length) is not int or not 0 <= length <= _MOST:
            raise _corrupt(f"{shown(name)}: {quoted(length)} is no length of a dimension")
    if math.prod(max(length, 1) for length in found) * itemsize > _MOST:
        raise _corrupt(f"{shown(name)}: {quoted(found)} is larger than any file")
    return tuple(found)


def check_digest(digest: Any, where: str) -> None:
    """HeaderError unless it is one of xxh3-128."""
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise _corrupt(
            f"{where}: expected a digest of 32 hexadecimal digits, found {quoted(digest)}"
        )


def _check_layout(layout: Layout) -> None:
    if min(layout.tp, layout.pp) < 1 or layout.ep not in (1, layout.tp):
        raise _corrupt(f"layout: no engine has {layout}")
    if layout.rank >= layout.world:
        raise _corrupt(f"layout: rank {layout.rank} of {layout.world}")


def _check_places(header: Header, first: int) -> None:
    """Every parameter where the one before it ends, and the file's end behind the last: none
    overlaps, none lies outside, none twice."""
    names: set[str] = set()
    end = first
    for entry in header.parameters:
        if entry.name in names:
            raise _corrupt(f"{shown(entry.name)} stands in it twice")
        if entry.offset != end:
            raise _corrupt(f"{shown(entry.name)}: expected at {end:,}, found at {entry.offset:,}")
        names.add(entry.name)
        end = up(entry.offset + entry.nbytes)
    if end != header.size:
        raise _corrupt(f"its parameters end at {end:,}, the file at {header.size:,}")
