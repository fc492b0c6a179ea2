"""Finding and opening devices."""

from __future__ import annotations

import importlib.util
import os
import warnings

import torch

from loaders.device.accelerator import Accelerator
from loaders.device.cpu import HostDevice
from loaders.device.faults import NOT_AUTOLOADED, RAISED, DeviceError, code_of, device_error
from loaders.device.interface import KINDS, Device, parse_device


def open_device(text: str) -> Device:
    """The device named by `text`, started, and copied to once. An accelerator that is there and
    can't be started is an error also for `auto`: a copy within host memory would be taken for one
    to it.

    Errors as of `find_device`, and DeviceError for a device that is busy or can't be started.
    """
    found, warned = _find(text)
    if found == "cpu":
        return HostDevice(notes=warned)
    wanted = parse_device(found)
    device = Accelerator(wanted.kind, wanted.index or 0)
    # The first copy loads what copies need (a second's worth of modules with some backends), which
    # is none of the time that a later one takes.
    device.copy_(device.empty(1), torch.zeros(1, dtype=torch.uint8))
    device.synchronize()
    return device


def find_device(text: str) -> str:
    """The text of the device that `text` means (see `parse_device`), with its number; none is
    started. `auto` is the first accelerator that there is, else the cpu.

    DeviceTextError for a text that means nothing; DeviceError for a device that isn't there, is
    half-installed, or has too old a driver.
    """
    return _find(text)[0]


def _find(text: str) -> tuple[str, tuple[str, ...]]:
    """`find_device`, and where `auto` came to the cpu what torch warned of meanwhile."""
    wanted = parse_device(text)
    if wanted.kind == "cpu":
        return "cpu", ()
    kind, count, warned = _present()
    if wanted.kind == "auto":
        return (f"{kind}:0", ()) if kind is not None and count else ("cpu", warned)
    if kind != wanted.kind or not count:
        raise _missing(wanted.kind, kind if count else None)
    index = wanted.index or 0
    if index >= count:
        there = f"{kind}:0" if count == 1 else f"{kind}:0 to {kind}:{count - 1}"
        raise DeviceError("missing", f"{text}: there is no such device; there is {there}, and cpu")
    return f"{wanted.kind}:{index}", ()


def device_texts() -> list[str]:
    """Every accelerator that there is, as `open_device` takes it. None is started."""
    kind, count, _ = _present()
    return [f"{kind}:{index}" for index in range(count)] if kind is not None else []


def _present() -> tuple[str | None, int, tuple[str, ...]]:
    """The kind of accelerator that torch has here, if it is one that loaders know; how many there
    are; and what torch warned of when it looked (a driver that is too old, for one)."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            # In this order: torch 2.6 raises when asked for an accelerator where there is none.
            there = torch.accelerator.is_available()
            found = torch.accelerator.current_accelerator() if there else None
            known = found is not None and found.type in KINDS
            count = torch.accelerator.device_count() if known else 0
        except RAISED as error:
            raise device_error(error, "accelerator", "looking for it") from error
    said = tuple(f"no accelerator is used: {_first_line(one.message)}" for one in caught)
    return (found.type, count, said) if found is not None and count else (None, 0, said)


def _first_line(message: Warning | str) -> str:
    return (str(message).strip().splitlines() or ["a warning without a text"])[0]


def _missing(kind: str, other: str | None) -> DeviceError:
    """Why there is no device of that kind, as far as it can be told."""
    instead = f"{other} and cpu" if other else "cpu"
    if kind == "npu":
        return _missing_npu(instead)
    try:
        torch.empty(1, device=kind)
    except RAISED as error:
        if code_of(str(error)) != "unknown":
            return device_error(error, kind, "looking for it")
    return DeviceError("missing", f"{kind}: there is no such device; there is {instead}")


def _missing_npu(instead: str) -> DeviceError:
    if importlib.util.find_spec("torch_npu") is None:
        why = "torch_npu isn't installed (the version that fits this torch; it needs CANN)"
    elif os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        why = f"torch_npu is installed but not loaded, because of {NOT_AUTOLOADED}: unset it"
    else:
        why = (
            "torch_npu is installed but shows no device: look at `npu-smi info`, at /dev/davinci* "
            "and at ASCEND_RT_VISIBLE_DEVICES"
        )
    return DeviceError("missing", f"npu: there is no such device; there is {instead}; {why}")
