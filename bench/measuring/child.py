"""What a measuring child does: get ready, wait for the go, load and consume, then prove it.

Imported by the fork server, so that torch and every loader are there when a child begins.
"""

from __future__ import annotations

import gc
import importlib
import pickle
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, get_args

import torch

from bench.measuring.channel import Channel
from bench.measuring.consume import byte_sum, warm_up
from bench.measuring.counters import Meter, counters_of, memory, reset_peak
from bench.measuring.rows import Joined
from bench.measuring.verify import SHOWN, Kept, Reference, Seen, faults_of, shared_memory
from loaders import registry
from loaders.checkpoint.manifest import Checkpoint
from loaders.contract import Loader, Ownership
from loaders.io.buffers import allocate, pages_under

registry.entries()

AWAKE = 0.05
"""Seconds that a child waits for its go without sleeping."""

LINGER = 0.02
"""Seconds that the proof waits with a borrowed tensor in hand: readers may run ahead into it."""

LINGERS = 3
"""How often: the first few tensors of a load."""


@cache
def manifest(*, path: str) -> Checkpoint:
    """The manifest as the runner read it. A child must not read headers itself: that would warm
    the cache of the files that it is about to load cold. `path` by name only, as preloaded: to
    `cache`, f(x) and f(path=x) are two calls."""
    loaded = pickle.loads(Path(path).read_bytes())
    assert isinstance(loaded, Checkpoint)
    return loaded


@cache
def reference(*, path: str) -> Reference:
    loaded = pickle.loads(Path(path).read_bytes())
    assert isinstance(loaded, Reference)
    return loaded


class Stopwatch:
    """The stamps of one piece of work, in seconds of the thread that does it: for a load opening,
    allocating, consuming, and what remains of the total is reading (`rest`). `running` is the stamp
    that is open; two at a time would count the same seconds twice, so that is a RuntimeError."""

    def __init__(
        self, stages: Sequence[str] = ("open", "allocate", "consume"), rest: str = "read"
    ) -> None:
        self.spent = dict.fromkeys(stages, 0.0)
        self.rest = rest
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
        """The parts of `total`, which they add up to. RuntimeError if the stamps exceed it."""
        rest = total - sum(self.spent.values())
        if rest < -1e-6:
            raise RuntimeError(
                f"the stamps exceed the total of {total:.6f} s by {-rest:.6f} s; they divide the "
                f"iterating thread's time and may be used on it alone"
            )
        return {**self.spent, self.rest: max(rest, 0.0), "total": total}


@dataclass(slots=True, kw_only=True)
class Load:
    """One load as it was seen from outside the loader."""

    seen: list[Seen] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
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

    Its clock runs from the go until `done`; a loader's own total is a little less, by what is
    looked at here. After `done` the child
    waits until the runner says that its clock has stopped: the threads of a numerical library spin
    for a while after their work, and with the child computing on, no core might be free for the
    runner to look at its clock.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._peak_reset = reset_peak()
        self._resident = memory().resident
        self._meter = Meter()
        self._meter.look()  # once before it counts: the first time is the dearest
        self._went = 0.0

    def wait_for_go(self) -> None:
        """Wakes before it is called, if that is soon: a process that slept is late by milliseconds
        where a virtual machine has to be given its core back first."""
        self._channel.send({"ready": True})
        self._channel.await_awake(AWAKE)
        self._channel.receive()
        self._went = time.perf_counter()
        self._before = self._meter.look()

    def done(self) -> dict[str, Any]:
        after = self._meter.look()
        whole = time.perf_counter() - self._went
        self._channel.send({"done": True})
        self._channel.receive()
        self._meter.close()
        spent = counters_of(after).since(counters_of(self._before))
        return {
            "child_seconds": whole,
            "counters": asdict(spent),
            "memory": {**asdict(memory()), "before": self._resident},
            "peak_reset": self._peak_reset,
        }


def load_once(loader: Loader, checkpoint: Checkpoint, watch: Stopwatch) -> Load:
    """Iterates and consumes. Owned tensors are kept to the end, as an engine would keep them:
    memory that is handed back in between would be found again, warm, by the next tensor."""
    if loader.in_rows:
        return _load_rows(loader, checkpoint, watch)
    load = Load()
    spent = watch.spent
    clock = time.perf_counter
    began = clock()
    for item in loader.load(checkpoint, watch.stamp):
        mark = clock()
        name, tensor = pair_of(item)
        if watch.running is not None:
            raise RuntimeError(f"{name} was yielded within stamp {watch.running!r}")
        seen = Seen.of(name, tensor, byte_sum(tensor))
        load.seen.append(seen)
        if loader.ownership == "owned":  # asked each time: some find out while they open
            load.kept.append((seen, tensor))
        spent["consume"] += clock() - mark
        del item, tensor  # what a loader gives up with its last tensor (a mapping) is part of it
    load.total = clock() - began
    return load


def _load_rows(loader: Loader, checkpoint: Checkpoint, watch: Stopwatch) -> Load:
    """The same for a loader that gives rows, none of which is kept."""
    load, joined = Load(), Joined(checkpoint)
    spent = watch.spent
    clock = time.perf_counter
    began = clock()
    for name, first, rows in loader.load_rows(checkpoint, watch.stamp):
        mark = clock()
        seen = joined.add(name, first, rows)
        if seen is not None:
            load.seen.append(seen)
        spent["consume"] += clock() - mark
        del rows
    load.total = clock() - began
    joined.finish()
    return load


def pair_of(item: Any) -> tuple[str, torch.Tensor]:
    """What an iterator yielded, if it is a pair; TypeError for anything else."""
    if not isinstance(item, tuple) or len(item) != 2:
        raise TypeError(f"expected (name, tensor) from the loader, got {type(item).__name__}")
    return item


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
    checkpoint = manifest(path=manifest_path)
    cls = registry.get(loader)
    subject = cls(threads=threads, **options)
    shown: list[tuple[str, memoryview]] = []
    subject.on_memory = lambda what, memory: shown.append((what, memory))
    for module in cls.requires:  # an import is no part of a load
        importlib.import_module(module)
    if subject.ownership not in get_args(Ownership):
        raise ValueError(f"{loader}: no such ownership: {subject.ownership!r}")
    prepare(touch_bytes, cores)
    watch = Stopwatch()
    counted = Counted(channel)
    counted.wait_for_go()
    load = load_once(subject, checkpoint, watch)
    report = counted.done()
    report.update(
        bytes=sum(seen.nbytes for seen in load.seen),
        seconds=watch.seconds(load.total),
        ownership=subject.ownership,
        notes=list(subject.notes),
        counts=dict(subject.counts),
        details={
            **pages_of(shown),
            **(
                {"settings": subject.settings, "files": len(checkpoint.files)}
                if subject.counts
                else {}
            ),
        },
    )
    shown.clear()  # a ring lasts no longer
    channel.send(report)

    expected = reference(path=reference_path) if reference_path else None
    faults = faults_of(load.seen, load.kept, checkpoint, expected, made_up=cls.synthetic)
    load.kept.clear()
    if not faults:
        again = cls(threads=threads, **options)
        faults = prove(again, checkpoint, expected, load.seen)
    channel.send({"faults": faults})


def pages_of(shown: list[tuple[str, memoryview]]) -> dict[str, int]:
    """What a loader's own memory was really made of, from smaps: `ring_bytes` or `owned_bytes`, and
    how many of them were in huge pages."""
    found = {}
    for what in {what for what, _ in shown}:
        pieces = [memory for other, memory in shown if other == what]
        found[f"{what}_bytes"] = sum(map(len, pieces))
        found[f"{what}_huge_bytes"] = pages_under(pieces).huge_kb << 10
    return found


def prove(
    loader: Loader, checkpoint: Checkpoint, expected: Reference | None, timed: list[Seen]
) -> list[str]:
    """The second load, untimed: a digest of each tensor, taken while it is valid, against the
    reference; and what it yields must be what the timed load yielded. Mapped tensors are all kept,
    which costs no memory: none may lie where another one does."""
    if loader.in_rows:
        return prove_rows(loader, checkpoint, expected, timed)
    watch = Stopwatch()
    left = {seen.name: seen for seen in timed}
    faults: list[str] = []
    kept: list[Kept] = []
    lingered = 0
    try:
        for item in loader.load(checkpoint, watch.stamp):
            name, tensor = pair_of(item)
            again = Seen.of(name, tensor, byte_sum(tensor))
            faults += _differences(left.pop(name, None), again, made_up=loader.synthetic)
            if expected is not None and not loader.synthetic:
                faults += expected.digest_faults(name, tensor)
            if loader.ownership == "borrowed" and lingered < LINGERS and tensor.nbytes:
                lingered += 1
                time.sleep(LINGER)
                if byte_sum(tensor) != again.byte_sum:
                    faults.append(f"{name}: its memory changed before the iterator was advanced")
            if loader.ownership == "mapped":
                kept.append((again, tensor))
            if len(faults) >= SHOWN:
                return faults
    except Exception as error:
        return [*faults, _raised(error)]
    return [*faults, *_only_timed(left)] or shared_memory(kept, checkpoint)


def prove_rows(
    loader: Loader, checkpoint: Checkpoint, expected: Reference | None, timed: list[Seen]
) -> list[str]:
    """The same for a loader that gives rows: the digest is that of all rows of a tensor."""
    joined, left = Joined(checkpoint, digests=True), {seen.name: seen for seen in timed}
    faults: list[str] = []
    lingered = 0
    try:
        for name, first, rows in loader.load_rows(checkpoint, Stopwatch().stamp):
            again = joined.add(name, first, rows)
            if lingered < LINGERS and rows.nbytes:
                lingered += 1
                before = byte_sum(rows)
                time.sleep(LINGER)
                if byte_sum(rows) != before:
                    faults.append(f"{name}: its memory changed before the iterator was advanced")
            if again is None:
                continue
            faults += _differences(left.pop(name, None), again, made_up=False)
            if expected is not None:
                faults += expected.found_faults(name, joined.digest)
            if len(faults) >= SHOWN:
                return faults
        joined.finish()
    except Exception as error:
        return [*faults, _raised(error)]
    return [*faults, *_only_timed(left)]


def _raised(error: Exception) -> str:
    return f"the second, untimed load raised {type(error).__name__}: {error}"


def _only_timed(left: dict[str, Seen]) -> list[str]:
    names = ", ".join(list(left)[:3])
    return [f"{len(left)} tensor(s) came in the timed load only: {names}"] if left else []


def _differences(timed: Seen | None, again: Seen, *, made_up: bool) -> list[str]:
    if timed is None:
        return [f"{again.name}: came once more, or for the first time, in the untimed load"]
    if timed.form != again.form:
        return [f"{again.name}: {timed.form} in the timed load, {again.form} in the untimed one"]
    if timed.byte_sum != again.byte_sum and not made_up:
        return [f"{again.name}: the timed load yielded other bytes than the untimed one"]
    return []
