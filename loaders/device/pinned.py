"""Pinned memory: page-locked host memory that a device copies from by itself.

Pinning can fail for limits of the host or the driver, can take longer than the copy that it is for,
and on CUDA a failed try can make a later call report it (a sticky error). So a child process tries
first, and a copy that can't have it starts from ordinary memory and says so.

Run as a module it is that child: `python -m loaders.device.pinned cuda:0 1048576`.
"""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from loaders.device.faults import RAISED, DeviceError, DeviceTextError, device_error
from loaders.device.interface import HostMemory

if TYPE_CHECKING:
    from loaders.device.interface import Device

TIMEOUT_SECONDS = 60.0
"""For a child that imports torch, starts the device and pins; some drivers hang instead."""

_ROOT = Path(__file__).parents[2]

_one_at_a_time = threading.Lock()  # what is taken is told from the allocator's sum before and after


@dataclass(frozen=True, slots=True, kw_only=True)
class PinProbe:
    """What a child process found: whether `asked` bytes can be pinned for the device, and why not;
    `got` as in HostMemory."""

    ok: bool
    asked: int
    got: int | None = None
    reason: str | None = None


def take_pinned(module: Any, nbytes: int) -> HostMemory:
    """Pinned memory from a device's module. Raises whatever the backend raises.

    torch pins through an allocator that a backend must bring in C++. One that is written in Python
    has `empty_pinned(nbytes)` in its module instead, giving (uint8 tensor, bytes taken).
    """
    own = getattr(module, "empty_pinned", None)
    if own is not None:
        tensor, got = own(nbytes)
        return HostMemory(tensor=tensor, asked=nbytes, got=got, pinned=True)
    with _one_at_a_time:
        before = _active_bytes(module)
        tensor = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        after = _active_bytes(module)
    got = after - before if before is not None and after is not None else None
    return HostMemory(tensor=tensor, asked=nbytes, got=got, pinned=True)


def _active_bytes(module: Any) -> int | None:
    """Bytes of the pinned blocks in use, rounded as they were taken; None where the backend doesn't
    count them (torch.cuda does since 2.8)."""
    stats = getattr(module, "host_memory_stats", None)
    if stats is None:
        return None
    found = stats()
    return int(found.get("active_bytes.current", 0)) if found else 0


def ordinary(nbytes: int, reason: str) -> HostMemory:
    """Pageable memory, touched, from a page on: what is used where there is no pinned memory."""
    try:
        array = np.zeros(nbytes + mmap.PAGESIZE, dtype=np.uint8)
        array[:: mmap.PAGESIZE] = 0
    except MemoryError as error:
        raise device_error(error, "cpu", f"allocating {nbytes} bytes") from error
    start = -array.ctypes.data % mmap.PAGESIZE
    tensor = torch.from_numpy(array[start : start + nbytes])
    return HostMemory(tensor=tensor, asked=nbytes, got=0, pinned=False, reason=reason)


def pinned_or_ordinary(device: Device, nbytes: int, probe: PinProbe | None = None) -> HostMemory:
    """Pinned memory, or ordinary memory that says why it isn't pinned. `probe`: what a child found
    before; where it failed, this process doesn't try. DeviceError if there is no memory at all."""
    if probe is not None and not probe.ok:
        return ordinary(nbytes, probe.reason or "it can't be pinned")
    if nbytes == 0:
        return ordinary(0, "there is nothing to pin in no bytes")  # drivers refuse it
    try:
        return device.empty_pinned(nbytes)
    except DeviceError as error:
        return ordinary(nbytes, str(error))


def pinned_each(
    device: Device, sizes: Sequence[int], probe: PinProbe | None = None
) -> list[HostMemory]:
    """A piece for each size. After one refusal the rest isn't tried: each try can be slow, and a
    driver that refused once may report it again in a later call."""
    found: list[HostMemory] = []
    for nbytes in sizes:
        memory = pinned_or_ordinary(device, nbytes, probe)
        if not memory.pinned and nbytes:
            probe = PinProbe(ok=False, asked=nbytes, reason=memory.reason)
        found.append(memory)
    return found


def probe_pin(device_text: str, nbytes: int, *, timeout: float = TIMEOUT_SECONDS) -> PinProbe:
    """Lets a child process pin `nbytes` for the device. Nothing that goes wrong in it (refusal,
    crash, hanging driver) reaches this process; it becomes the reason."""
    if device_text == "cpu":
        from loaders.device.cpu import NOTHING_TO_PIN

        return PinProbe(ok=False, asked=nbytes, reason=NOTHING_TO_PIN)
    command = [sys.executable, "-m", __name__, device_text, str(nbytes)]
    try:
        done = subprocess.run(
            command, cwd=_ROOT, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        reason = f"a child process that pinned {nbytes} bytes gave no answer in {timeout:g} s"
        return PinProbe(ok=False, asked=nbytes, reason=reason)
    except OSError as error:
        reason = f"no child process could be started to try it: {error}"
        return PinProbe(ok=False, asked=nbytes, reason=reason)
    return _answer(done, nbytes)


def _answer(done: subprocess.CompletedProcess[str], nbytes: int) -> PinProbe:
    last = (done.stdout.strip().splitlines() or [""])[-1]
    try:
        said = json.loads(last)
        ok, got, reason = bool(said["ok"]), said["got"], said["reason"]
    except (ValueError, TypeError, KeyError):
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit {done.returncode}"
        told = (done.stderr.strip().splitlines() or ["no message"])[-1]
        reason = f"a child process that pinned {nbytes} bytes ended with {how}: {told}"
        return PinProbe(ok=False, asked=nbytes, reason=reason)
    return PinProbe(ok=ok, asked=nbytes, got=got, reason=reason)


def _child(device_text: str, nbytes: int) -> int:
    from loaders.device.discover import open_device

    ok, got, reason = True, None, None
    try:
        got = open_device(device_text).empty_pinned(nbytes).got
    except (DeviceError, DeviceTextError, *RAISED) as error:
        ok, reason = False, str(error)
    sys.stdout.write(json.dumps({"ok": ok, "got": got, "reason": reason}) + "\n")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(_child(sys.argv[1], int(sys.argv[2])))
