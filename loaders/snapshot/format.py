"""The snapshot of one rank: a header, then every parameter's bytes, each from a page on.

    0     8   magic "COLDSNAP"; written last, so that a file without it was never finished
    8     4   u32 version of this format, 1
    12    4   zero
    16    8   u64 bytes of the JSON text; spaces at its end fill it up to a multiple of 4096
    24    8   u64 xxh3-64 of that text
    32    8   u64 bytes of the whole file, a multiple of 4096
    40        the JSON text, then the parameters

Numbers are little-endian. Each parameter begins at the first multiple of 4096 behind the one before
it, zeros between, and is contiguous, in the order in which the source holds it, so that direct
reads of whole blocks bring nothing else and land where the tensor lies. The JSON object:

    layout        {tp, pp, ep, rank}: the rank, and of how many (tp x pp ranks; ep is 1 or tp)
    processing    "pre": as an engine holds parameters before its process_weights_after_loading;
                  "post": quantised or in a device's layout, as it holds them afterwards
    device_layout "plain" ([out, in], as checkpoints have it), "transpose" or "nz"
                  (loaders.quantise.layout)
    quantisation  a scheme's name (loaders.quantise.schemes) or null
    source        {name, format, files, bytes, tensors, structure, content}: `structure` is a digest
                  of names, dtypes and shapes, `content` one of every tensor's bytes; how the
                  source was cut into files is in neither
    made          {coldload, torch, seconds}: versions, and what making and verifying it took
    parameters    a list of {name, dtype, shape, offset, nbytes, xxh3, of}: `xxh3` is the xxh3-128
                  of its bytes, `of` the shape [.., out, in] of a weight in another layout, else
                  null

A folder holds one file a rank, `rank-<rank>-of-<ranks>.snapshot`, and the source's config.json.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import xxhash

MAGIC: Final = b"COLDSNAP"
VERSION: Final = 1
ALIGN: Final = 4096
SUFFIX: Final = ".snapshot"
DEVICE_LAYOUTS: Final = ("plain", "transpose", "nz")
HEAD: Final = struct.Struct("<8sIIQQQ")
MAX_TEXT: Final = 64 << 20
_NO_DIGEST: Final = "0" * 32
_SLACK: Final = 64
"""Bytes kept for what is known only at the end: the seconds that making it took."""


class HeaderError(ValueError):
    """A header that no finished snapshot has: `code` of the problem, and one sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which rank of how many. `ep` is 1 or `tp`."""

    tp: int = 1
    pp: int = 1
    ep: int = 1
    rank: int = 0

    @property
    def world(self) -> int:
        return self.tp * self.pp

    def __str__(self) -> str:
        return f"tp {self.tp}, pp {self.pp}, ep {self.ep}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a snapshot was made from; `bytes` are those of all tensors."""

    name: str
    format: str
    files: int
    bytes: int
    tensors: int
    structure: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """By which versions, and the seconds it took, reading and verifying included."""

    coldload: str
    torch: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One parameter. `offset` from the file's beginning, in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    xxh3: str = _NO_DIGEST
    of: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """All that a file says about itself. `size` is that of the file in bytes."""

    layout: Layout
    processing: str
    device_layout: str
    quantisation: str | None
    source: Source
    made: Made
    parameters: tuple[Entry, ...] = field(default=())
    size: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all parameters."""
        return sum(entry.nbytes for entry in self.parameters)

    def facts(self) -> dict[str, Any]:
        """All but the parameters, as JSON has it."""
        value = asdict(self)
        del value["parameters"], value["size"]
        return value


def file_name(layout: Layout) -> str:
    return f"rank-{layout.rank:05d}-of-{layout.world:05d}{SUFFIX}"


def placed(sizes: Sequence[int], first: int) -> tuple[list[int], int]:
    """The offset of each parameter of these sizes, and the bytes of the file, data from `first`
    (a multiple of ALIGN) on."""
    offsets, at = [], first
    for nbytes in sizes:
        offsets.append(at)
        at = up(at + nbytes)
    return offsets, at


def room(header: Header) -> int:
    """Where the data begins: behind the header, with entries of any offset."""
    far = [_as_json(entry, offset=1 << 62) for entry in header.parameters]
    return up(HEAD.size + len(_text(header, far)) + _SLACK)


def up(nbytes: int) -> int:
    """The next multiple of ALIGN."""
    return -(-nbytes // ALIGN) * ALIGN


def to_bytes(header: Header, first: int) -> bytes:
    """The header as it stands in the file, `first` bytes long, padding included. ValueError if it
    doesn't fit."""
    text = _text(header, [_as_json(entry) for entry in header.parameters])
    if HEAD.size + len(text) > first:
        raise ValueError(f"a header of {HEAD.size + len(text)} bytes, room for {first}")
    text += b" " * (first - HEAD.size - len(text))
    check = xxhash.xxh3_64_intdigest(text)
    return HEAD.pack(MAGIC, VERSION, 0, len(text), check, header.size) + text


def _as_json(entry: Entry, **changed: object) -> dict[str, object]:
    return {**asdict(entry), **changed}


def _text(header: Header, entries: list[dict[str, object]]) -> bytes:
    value = {**header.facts(), "parameters": entries}
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
