"""What cache state a sample really had: asked, acted, then judged by what was seen. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bench.record.records import State
from bench.sizes import SizeError, parse_size

ABSENT = 0.005
"""Resident fraction up to which a file counts as not cached."""

PRESENT = 0.995
FETCHED = 0.95
"""Part of the payload that a cold load must have fetched from the device, where that is counted."""

NEAR = 0.02
"""How far a resident fraction may be from the asked one to be it."""

STRETCH = 64 << 20
"""Bytes of a file of which the first part is made resident, unless another size is asked for."""

_SHARE = re.compile(r"([1-9][0-9]?)%(?:@(.+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Of every `stretch` bytes of each file, the first `fraction` is in the page cache."""

    fraction: float
    stretch: int = STRETCH


def share_of(requested: str) -> Share | None:
    """The share that `50%` or `50%@1MiB` asks for, from 1 to 99 %; None for cold, warm and what is
    no cache state."""
    found = _SHARE.fullmatch(requested)
    if found is None:
        return None
    try:
        stretch = parse_size(found[2]) if found[2] else STRETCH
    except SizeError:
        return None
    return Share(fraction=int(found[1]) / 100, stretch=stretch)


def as_shared(requested: str, resident: float | None) -> bool:
    """Whether a share was asked for and is there, within NEAR."""
    share = share_of(requested)
    return share is not None and resident is not None and abs(resident - share.fraction) <= NEAR


def cache_state(
    requested: str,
    resident: float | None,
    fetched: int | None,
    payload: int | None,
    resident_after: float | None = None,
) -> State:
    """`cold` only if nothing was resident and, where the kernel counts it, the bytes did come from
    the device; `warm` only if all was resident, and still is where that was looked at (memory too
    small for the files pushes them out while they are read); `mixed` for anything else, and for a
    share (`share_of`) always: which one, the resident fraction says;
    `unverified` where residency can't be known; `none` for what reads no file.

    A warm sample that fetched from the device is warm: its loader doesn't ask the page cache."""
    if requested == "none":
        return "none"
    if resident is None:
        return "unverified"
    if share_of(requested) is not None:
        return "mixed"
    if requested == "warm":
        stayed = resident_after is None or resident_after >= PRESENT
        return "warm" if resident >= PRESENT and stayed else "mixed"
    if resident > ABSENT:
        return "mixed"
    if fetched is not None and payload is not None and fetched < FETCHED * payload:
        return "mixed"
    return "cold"
