"""torch.npu of the simulated device: the functions that torch_npu gives it, as far as they are
used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

from simulated_npu import memory, streams
from simulated_npu.settings import settings

NAME = "simulated NPU (no hardware)"


def module() -> ModuleType:
    made = ModuleType("torch.npu")
    for function in (
        is_available, is_initialized, device_count, manual_seed_all, get_device_name,
        get_device_properties, mem_get_info, memory_allocated, max_memory_allocated,
        reset_peak_memory_stats, device, empty_cache,
    ):  # fmt: skip
        setattr(made, function.__name__, function)
    for name in ("Stream", "Event", "stream", "current_stream", "current_device", "set_device"):
        setattr(made, name, getattr(streams, name))
    made.synchronize = streams.synchronize
    made.empty_pinned = memory.pin
    made._is_in_bad_fork = lambda: False
    return made


def is_available() -> bool:
    return settings.devices > 0


def is_initialized() -> bool:
    return True


def device_count() -> int:
    return settings.devices


def manual_seed_all(seed: int) -> None:
    """There is nothing random in it."""


def get_device_name(index: int = 0) -> str:
    return NAME


def get_device_properties(index: int = 0) -> SimpleNamespace:
    return SimpleNamespace(name=NAME, total_memory=settings.memory)


def mem_get_info(index: int = 0) -> tuple[int, int]:
    streams.check(index)
    return settings.memory - memory_allocated(index), settings.memory


def memory_allocated(index: int = 0) -> int:
    return memory._allocated.get(index, 0)


def max_memory_allocated(index: int = 0) -> int:
    return memory._peak.get(index, 0)


def reset_peak_memory_stats(index: int = 0) -> None:
    memory._peak[index] = memory_allocated(index)


def empty_cache() -> None:
    """It keeps none."""


@contextmanager
def device(index: int) -> Iterator[None]:
    before = streams.current_device()
    streams.set_device(index)
    try:
        yield
    finally:
        streams.set_device(before)
