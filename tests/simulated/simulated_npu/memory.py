"""The device's memory: pieces of host memory that only its own copies can reach.

What makes missing synchronisation visible: fresh memory holds POISON, a copy reads its source and
writes its target when it is its turn (a pinned source that is changed before is copied changed),
and the host sees device memory as it is now, without waiting: stricter than CUDA.
"""

from __future__ import annotations

import bisect
import threading
import time
import weakref
from typing import Any

import numpy as np
import torch

from simulated_npu import streams
from simulated_npu.settings import settings

POISON = 0xA5
PAGE = 4096
_GRAIN = 512
_lock = threading.Lock()
_allocated: dict[int, int] = {}
_peak: dict[int, int] = {}
_pinned: list[tuple[int, int]] = []
_aten = torch.ops.aten
_VIEWS = {
    _aten.slice.Tensor, _aten.select.int, _aten.view.default, _aten.view.dtype,
    _aten.detach.default, _aten.alias.default, _aten.as_strided.default, _aten.t.default,
    _aten.transpose.int, _aten.permute.default, _aten.unsqueeze.default, _aten.squeeze.default,
    _aten.squeeze.dim, _aten.expand.default, _aten._unsafe_view.default, _aten.split.Tensor,
    _aten.unbind.int, _aten._reshape_alias.default,
}  # fmt: skip


class OnDevice(torch.Tensor):
    """A tensor on the simulated device; `inner` is the host tensor that stands for its memory."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor, index: int) -> OnDevice:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device("npu", index),
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _aten.copy_.default:
            return copy(*args, **kwargs)
        if func is _aten._to_copy.default:
            return to_copy(args[0], **kwargs)
        index = next(arg.device.index for arg in flat(args) if isinstance(arg, OnDevice))
        streams.check(index)
        if func not in _VIEWS:
            streams.current_stream(index).synchronize()  # what computes does so in stream order
        found = func(*bare(args), **bare(kwargs))
        if func._schema.is_mutable:
            return args[0]
        return wrapped(found, index)


def flat(values: Any) -> list[Any]:
    if isinstance(values, list | tuple):
        return [each for value in values for each in flat(value)]
    return [values]


def bare(value: Any) -> Any:
    if isinstance(value, OnDevice):
        return value.inner
    if isinstance(value, list | tuple):
        return type(value)(bare(each) for each in value)
    if isinstance(value, dict):
        kept = {key: bare(each) for key, each in value.items()}
        return {**kept, "device": torch.device("cpu")} if kept.get("device") else kept
    return value


def wrapped(value: Any, index: int) -> Any:
    if isinstance(value, torch.Tensor):
        return OnDevice(value, index)
    if isinstance(value, list | tuple):
        return type(value)(wrapped(each, index) for each in value)
    return value


def copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if not isinstance(target, OnDevice):
        target.copy_(bare(source))  # as it is now
        return target
    index = target.device.index
    streams.check(index)
    if settings.fails("copy"):
        raise RuntimeError("NPU function error: aclrtMemcpyAsync, error code is 507899")
    lost = settings.fails("lost")
    into, origin = target.inner, bare(source)
    if non_blocking and not isinstance(source, OnDevice) and not is_pinned(source):
        origin = origin.clone()  # pageable memory is free again once the call returns
    stream, queued = streams.current_stream(index), time.perf_counter()

    def job() -> None:
        if lost:
            streams.lose(index)
        if index in streams._lost:
            return
        link = streams.link(index)
        with link.lock:
            link.take(into.nbytes, queued)
            move(into, origin)

    stream.queue(job)
    if not non_blocking:
        stream.synchronize()
    return target


def move(into: torch.Tensor, origin: torch.Tensor) -> None:
    """By numpy where it's bytes to bytes: torch would start a team of threads for each stream's."""
    if into.dtype is origin.dtype is torch.uint8 and into.shape == origin.shape:
        into.numpy()[...] = origin.numpy()
    else:
        into.copy_(origin)


def to_copy(source: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    device = torch.device(kwargs.get("device") or source.device)
    dtype = kwargs.get("dtype") or source.dtype
    if device.type == "cpu":
        return torch.empty(source.shape, dtype=dtype).copy_(bare(source))
    made = empty(source.shape, dtype=dtype, device=device)
    return copy(made, source, bool(kwargs.get("non_blocking")))


def empty(
    size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
    memory_format: Any = None,
) -> torch.Tensor:  # fmt: skip
    dtype = dtype or torch.get_default_dtype()
    index = streams.current_device() if device is None or device.index is None else device.index
    streams.check(index)
    if not 0 <= index < settings.devices:
        raise RuntimeError(f"NPU function error: SetDevice({index}), error code is 107001")
    nbytes = int(np.prod(size, dtype=np.int64)) * dtype.itemsize
    taken = -(-nbytes // _GRAIN) * _GRAIN
    with _lock:
        used = _allocated.get(index, 0)
        if used + taken > settings.memory or settings.fails("allocate"):
            raise torch.OutOfMemoryError(
                f"NPU out of memory. Tried to allocate {nbytes} bytes (simulated NPU {index}; "
                f"{settings.memory} bytes total; {used} bytes already allocated)"
            )
        _allocated[index] = used + taken
        _peak[index] = max(_peak.get(index, 0), used + taken)
    array = np.full(nbytes, POISON, dtype=np.uint8)
    weakref.finalize(array, free, index, taken)
    if not nbytes:
        return OnDevice(torch.empty(size, dtype=dtype), index)
    return OnDevice(torch.from_numpy(array).view(dtype).view(size), index)


def free(index: int, taken: int) -> None:
    with _lock:
        _allocated[index] -= taken


def pin(nbytes: int) -> tuple[torch.Tensor, int]:
    """Page-locked memory, as far as this device believes, and the bytes taken: a power of two, as
    torch's allocator for CUDA takes."""
    if settings.fail.get("pin") == "hang":
        threading.Event().wait()
    if settings.fails("pin") or settings.fail.get("pin") == "always":
        raise RuntimeError("NPU function error: aclrtMallocHost, error code is 207001")
    if settings.fail.get("pin") == "crash":
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)
    array = np.zeros(nbytes + PAGE, dtype=np.uint8)
    start = -array.ctypes.data % PAGE
    span = (array.ctypes.data + start, array.ctypes.data + start + nbytes)
    with _lock:
        bisect.insort(_pinned, span)
    weakref.finalize(array, unpin, span)
    return torch.from_numpy(array[start : start + nbytes]), 1 << max(nbytes - 1, 0).bit_length()


def unpin(span: tuple[int, int]) -> None:
    with _lock:
        _pinned.remove(span)


def is_pinned(tensor: torch.Tensor) -> bool:
    begin = tensor.data_ptr()
    with _lock:
        at = bisect.bisect_right(_pinned, (begin, 1 << 64)) - 1
        return at >= 0 and begin + tensor.nbytes <= _pinned[at][1]


def pinned_bytes() -> int:
    with _lock:
        return sum(end - begin for begin, end in _pinned)


_library: list[torch.library.Library] = []


def register() -> None:
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", empty, "PrivateUse1")
    _library.append(library)  # what is registered lives as long as it does
