"""Finding and opening devices."""

from __future__ import annotations

import importlib.util
import os

import torch

from loaders.device.accelerator import Accelerator
from loaders.device.cpu import HostDevice
from loaders.device.faults import NOT_AUTOLOADED, RAISED, DeviceError, code_of, device_error
from loaders.device.interface import KINDS, Device, parse_device


def open_device(text: str) -> Device:
    """The device named by `text` (see `parse_device`), started. `auto` is the first accelerator
    that there is, else the cpu; one that is there and can't be started is an error also then, since
    a copy within host memory would be taken for its own.

    DeviceTextError for a text that means nothing; DeviceError for a device that isn't there, is
    half-installed, busy, or has too old a driver.
    """
    wanted = parse_device(text)
    if wanted.kind == "cpu":
        return HostDevice()
    kind, count = _present()
    if wanted.kind == "auto":
        return Accelerator(kind, 0) if kind is not None and count else HostDevice()
    if kind != wanted.kind or not count:
        raise _missing(wanted.kind, kind if count else None)
    index = wanted.index or 0
    if index >= count:
        there = f"{kind}:0" if count == 1 else f"{kind}:0 to {kind}:{count - 1}"
        raise DeviceError("missing", f"{text}: there is no such device; there is {there}, and cpu")
    return Accelerator(wanted.kind, index)


def device_texts() -> list[str]:
    """Every accelerator that there is, as `open_device` takes it. None is started."""
    kind, count = _present()
    return [f"{kind}:{index}" for index in range(count)] if kind is not None else []


def _present() -> tuple[str | None, int]:
    """The kind of accelerator that torch has here, and how many; a kind that loaders know."""
    try:
        found = torch.accelerator.current_accelerator()
        if found is None or found.type not in KINDS or not torch.accelerator.is_available():
            return None, 0
        return found.type, torch.accelerator.device_count()
    except RAISED as error:
        raise device_error(error, "accelerator", "looking for it") from error


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
