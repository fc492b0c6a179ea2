"""Bytes in use on the accelerators, where their driver's library can be asked."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


class DeviceMemory:
    """NVIDIA's through nvidia-ml-py. `reason` says why there is none to read; then `read` gives
    None. All accelerators together, whoever uses them: inside a container the driver doesn't say
    which process has what."""

    def __init__(self, load: Callable[[], Any] | None = None) -> None:
        self.reason: str | None = None
        self._nvml: Any = None
        self._devices: list[Any] = []
        try:
            self._nvml = (load or _nvml)()
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
            self._devices = [self._nvml.nvmlDeviceGetHandleByIndex(at) for at in range(count)]
        except ImportError:
            self.reason = "nvidia-ml-py isn't installed"
        except Exception as error:  # the library has its own class of errors, for each version
            self.reason = f"NVIDIA's library can't be asked: {error}"
        if self.reason is None and not self._devices:
            self.reason = "NVIDIA's library sees no device"

    def read(self) -> int | None:
        """Bytes in use on all devices together."""
        if self.reason is not None:
            return None
        try:
            return sum(int(self._nvml.nvmlDeviceGetMemoryInfo(one).used) for one in self._devices)
        except Exception as error:  # a device that was lost: told, and not asked again
            self.reason = f"reading device memory failed: {error}"
            return None


def _nvml() -> Any:
    return importlib.import_module("pynvml")
