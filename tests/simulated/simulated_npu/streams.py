"""Work that is queued and done later, by threads: nothing is there before it was waited for."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from simulated_npu.settings import settings

LOST = "NPU function error: aclrtSynchronizeDevice, error code is 507018: the device is lost"


class Link:
    """A device's link to the host: one copy at a time, at the rate of the settings."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.free_at = 0.0

    def take(self, nbytes: int, queued: float) -> None:
        """Blocks until the bytes are over that were queued at that time. Called with the lock. What
        this host takes to move them itself is made up for while more are queued."""
        if settings.rate <= 0:
            return
        self.free_at = max(self.free_at, queued, *_opened) + nbytes / settings.rate
        while (left := self.free_at - time.perf_counter()) > 0:
            time.sleep(left)


class Stream:
    """A queue of jobs, done in order by a thread that is there while there are any."""

    def __init__(self, device: object = None, priority: int = 0) -> None:
        self.index = index_of(device)
        self._jobs: deque[Callable[[], None]] = deque()
        self._change = threading.Condition()
        self._working = False
        streams_of(self.index).append(self)

    def queue(self, job: Callable[[], None]) -> None:
        with self._change:
            self._jobs.append(job)
            if not self._working:
                self._working = True
                threading.Thread(target=self._work, name="simulated-stream", daemon=True).start()

    def synchronize(self) -> None:
        with self._change:
            self._change.wait_for(lambda: not self._working)
        check(self.index)

    def _work(self) -> None:
        while True:
            with self._change:
                if not self._jobs:
                    self._working = False
                    self._change.notify_all()
                    return
                job = self._jobs.popleft()
            gate.wait()
            job()


class Event:
    """A mark in a stream, with the time at which it was reached."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self._timing = enable_timing
        self._reached: list[float] | None = None
        self._done = threading.Event()

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or current_stream(0)
        check(stream.index)
        reached: list[float] = []
        done = threading.Event()
        self._reached, self._done = reached, done

        def job() -> None:
            reached.append(time.perf_counter())
            done.set()

        stream.queue(job)

    def query(self) -> bool:
        return self._reached is None or self._done.is_set()

    def synchronize(self) -> None:
        if self._reached is not None:
            self._done.wait()

    def elapsed_time(self, end: Event) -> float:
        if not (self._timing and end._timing and self._reached and end._reached):
            raise RuntimeError("elapsed_time: both events must be recorded, with timing, and done")
        return (end._reached[0] - self._reached[0]) * 1e3


gate = threading.Event()
gate.set()
_opened: list[float] = []
_lost: set[int] = set()
_links: dict[int, Link] = {}
_streams: dict[int, list[Stream]] = {}
_default: dict[int, Stream] = {}
_here = threading.local()
_lock = threading.RLock()


@contextmanager
def held() -> Iterator[None]:
    """No work is done meanwhile, however long it takes: what isn't waited for isn't there."""
    gate.clear()
    try:
        yield
    finally:
        _opened[:] = [time.perf_counter()]
        gate.set()


def index_of(device: object) -> int:
    if device is None:
        return current_device()
    index = device if isinstance(device, int) else getattr(device, "index", None)
    return 0 if index is None else int(index)


def current_device() -> int:
    return int(getattr(_here, "device", 0))


def set_device(index: int) -> None:
    _here.device = index


def streams_of(index: int) -> list[Stream]:
    with _lock:
        return _streams.setdefault(index, [])


def link(index: int) -> Link:
    with _lock:
        return _links.setdefault(index, Link())


def current_stream(device: object = None) -> Stream:
    index = index_of(device)
    chosen: dict[int, Stream] = getattr(_here, "streams", {})
    if index in chosen:
        return chosen[index]
    with _lock:
        if index not in _default:
            _default[index] = Stream(index)
        return _default[index]


@contextmanager
def stream(wanted: Stream) -> Iterator[None]:
    before = dict(getattr(_here, "streams", {}))
    _here.streams = {**before, wanted.index: wanted}
    try:
        yield
    finally:
        _here.streams = before


def synchronize(device: object = None) -> None:
    index = index_of(device)
    for each in list(streams_of(index)):
        each.synchronize()
    check(index)


def lose(index: int) -> None:
    _lost.add(index)


def check(index: int) -> None:
    """RuntimeError once the device is lost, for every call."""
    if index in _lost:
        raise RuntimeError(LOST)


def reset() -> None:
    """Waits for what is queued, and mends what was lost."""
    _lost.clear()
    for index in list(_streams):
        synchronize(index)
    _streams.clear()
    _default.clear()
