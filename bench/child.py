"""What a measuring child does: get ready, wait for the go, load and consume, then prove it.

Imported by the fork server, so that torch and every loader are there when a child begins.
"""

from __future__ import annotations

import gc
import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from bench.channel import Channel
from bench.consume import byte_sum, warm_up
from bench.counters import Counters, memory, read_counters, reset_peak
from bench.verify import Reference, Seen, faults_of
from loaders import registry
from loaders.checkpoint.manifest import Checkpoint
from loaders.contract import Loader

registry.entries()


@cache
def manifest(path: str) -> Checkpoint:
    """The manifest as the runner read it. A child must not read headers itself: that would warm
    the cache of the files that it is about to load cold."""
    loaded = pickle.loads(Path(path).read_bytes())
    assert isinstance(loaded, Checkpoint)
    return loaded


@cache
def reference(path: str) -> Reference:
    loaded = pickle.loads(Path(path).read_bytes())
    assert isinstance(loaded, Reference)
    return loaded


class Stopwatch:
    """The stamps of one load, in seconds of the iterating thread: opening, allocating, consuming.
    What remains of the total is reading. `running` is the stamp that is open; two at a time would
    count the same seconds twice, so that is a RuntimeError."""

    def __init__(self) -> None:
        self.spent = {"open": 0.0, "allocate": 0.0, "consume": 0.0}
        self.running: str | None = None

    @contextmanager
    def stamp(self, phase: str) -> Iterator[None]:
        if self.running is not None:
            raise RuntimeError(f"stamp {phase!r} within stamp {self.running!r}: they don't nest")
        self.running = phase
        began = time.perf_counter()
        try:
            yield
        finally:
            self.spent[phase] += time.perf_counter() - began
            self.running = None

    def seconds(self, total: float) -> dict[str, float]:
        """The parts of `total`, which they add up to."""
        return {**self.spent, "read": total - sum(self.spent.values()), "total": total}


@dataclass(slots=True, kw_only=True)
class Load:
    """One load as it was seen from outside the loader."""

    seen: list[Seen] = field(default_factory=list)
    kept: list[torch.Tensor] = field(default_factory=list)
    total: float = 0.0


def recycle(nbytes: int) -> None:
    """Touches and frees a fixed amount of memory, so that every contestant finds the same supply
    of recently used pages: on virtual machines those are up to three times cheaper to get."""
    if nbytes == 0:
        return
    with allocate(nbytes, huge=True) as block:
        view = torch.frombuffer(block.view(), dtype=torch.uint8)
        view.fill_(1)
        del view  # or the memory would stay


def prepare(touch_bytes: int, cores: int) -> None:
    torch.set_num_threads(cores)
    recycle(touch_bytes)
    warm_up()
    gc.collect()
    gc.freeze()
    gc.disable()


class Counted:
    """What the kernel counts for this process between `ready` and `done`, and its memory.

    Counting begins before the go, since a waiting process costs nothing, and ends after `done` was
    said, so that the runner's clock and the child's stamps frame the same work.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._peak_reset = reset_peak()
        self._resident = memory().resident
        self._before: Counters = read_counters()

    def wait_for_go(self) -> None:
        self._channel.send({"ready": True})
        self._channel.receive()

    def done(self) -> dict[str, Any]:
        self._channel.send({"done": True})
        spent = read_counters().since(self._before)
        return {
            "counters": asdict(spent),
            "memory": {**asdict(memory()), "before": self._resident},
            "peak_reset": self._peak_reset,
        }


def load_once(loader: Loader, checkpoint: Checkpoint, watch: Stopwatch) -> Load:
    """Iterates and consumes. Owned tensors are kept to the end, as an engine would keep them:
    memory that is handed back in between would be found again, warm, by the next tensor."""
    load = Load()
    spent = watch.spent
    clock = time.perf_counter
    began = clock()
    for name, tensor in loader.load(checkpoint, watch.stamp):
        mark = clock()
        if watch.running is not None:
            raise RuntimeError(f"{name} was yielded within stamp {watch.running!r}")
        load.seen.append(Seen.of(name, tensor, byte_sum(tensor)))
        if loader.ownership == "owned":  # asked each time: some find out while they open
            load.kept.append(tensor)
        spent["consume"] += clock() - mark
        del tensor  # what a loader gives up with its last tensor (a mapping) is part of the load
    load.total = clock() - began
    return load


def disk_to_host(
    channel: Channel,
    *,
    loader: str,
    options: dict[str, Any],
    threads: int,
    manifest_path: str,
    reference_path: str | None,
    touch_bytes: int,
    cores: int,
) -> None:
    """One sample: file -> bytes in host memory. Says `ready`, waits for `go`, says `done` with its
    stamps and counters, then loads once more, untimed, and says what the proof found."""
    checkpoint = manifest(manifest_path)
    cls = registry.get(loader)
    subject = cls(threads=threads, **options)
    prepare(touch_bytes, cores)
    watch = Stopwatch()
    counted = Counted(channel)
    counted.wait_for_go()
    load = load_once(subject, checkpoint, watch)
    report = counted.done()
    report.update(
        bytes=sum(seen.nbytes for seen in load.seen),
        seconds={
            **watch.spent,
            "read": load.total - sum(watch.spent.values()),
            "total": load.total,
        },
        ownership=subject.ownership,
        notes=list(subject.notes),
    )
    channel.send(report)

    expected = reference(reference_path) if reference_path else None
    faults = faults_of(load.seen, load.kept, checkpoint, expected, made_up=cls.synthetic)
    load.kept.clear()
    if not faults:
        again = cls(threads=threads, **options)
        faults = prove(again, checkpoint, expected, load.seen)
    channel.send({"faults": faults})


def prove(
    loader: Loader, checkpoint: Checkpoint, expected: Reference | None, timed: list[Seen]
) -> list[str]:
    """The second load, untimed: a digest of each tensor, taken while it is valid, against the
    reference; and what it yields must be what the timed load yielded."""
    watch = Stopwatch()
    sums = {seen.name: seen.byte_sum for seen in timed}
    faults = []
    count = 0
    for name, tensor in loader.load(checkpoint, watch.stamp):
        count += 1
        again = byte_sum(tensor)
        if not loader.synthetic and sums.get(name) != again:
            faults.append(f"{name}: the timed load yielded other bytes than the untimed one")
        if expected is not None and not loader.synthetic:
            faults.extend(expected.digest_faults(name, tensor))
        if len(faults) > 5:
            break
    if not faults and count != len(timed):
        faults.append(f"the timed load yielded {len(timed)} tensors, the untimed one {count}")
    return faults
