"""What cache state a sample really had: asked, acted, then judged by what was seen. Pure."""

from __future__ import annotations

from bench.records import State

ABSENT = 0.005
"""Resident fraction up to which a file counts as not cached."""

PRESENT = 0.995
FETCHED = 0.95
"""Part of the payload that a cold load must have fetched from the device, where that is counted."""


def cache_state(
    requested: str,
    resident: float | None,
    fetched: int | None,
    payload: int | None,
    resident_after: float | None = None,
) -> State:
    """`cold` only if nothing was resident and, where the kernel counts it, the bytes did come from
    the device; `warm` only if all was resident, and still is where that was looked at (memory too
    small for the files pushes them out while they are read); `mixed` for anything else;
    `unverified` where residency can't be known; `none` for what reads no file.

    A warm sample that fetched from the device is warm: its loader doesn't ask the page cache."""
    if requested == "none":
        return "none"
    if resident is None:
        return "unverified"
    if requested == "warm":
        stayed = resident_after is None or resident_after >= PRESENT
        return "warm" if resident >= PRESENT and stayed else "mixed"
    if resident > ABSENT:
        return "mixed"
    if fetched is not None and payload is not None and fetched < FETCHED * payload:
        return "mixed"
    return "cold"
