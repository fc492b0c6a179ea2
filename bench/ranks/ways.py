"""How a rank gets its parameters, four ways. Each is called on all ranks at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import Event

import torch

from bench.measuring.child import Stopwatch
from bench.phases.slicing import fresh_targets
from bench.ranks.collective import Collective
from bench.ranks.job import Job, Way
from loaders.checkpoint.dtypes import torch_dtype
from loaders.io.sources import summed
from loaders.safetensors_prefetch import read_away
from loaders.slicing.execute import cut_stock, raw
from loaders.slicing.fetch import fetches
from loaders.slicing.plan import Parameter
from loaders.slicing.scatter import Shares, read_and_scatter
from loaders.slicing.sliced_read import fetched_bytes, read_sliced
from loaders.transfer.mapping import mapped_tensors

STAMPS = ("open", "allocate", "exchange", "transfer")
PREFETCH_THREADS = 8
PREFETCH_BLOCK = 16 << 20
"""vLLM 0.33's defaults of --safetensors-prefetch-num-threads and -block-size."""


@dataclass(slots=True, kw_only=True)
class Loaded:
    """`asked` are the bytes that the rank itself asked of the files, None for a mapping, which
    fetches what is touched."""

    targets: list[torch.Tensor]
    asked: int | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Rank:
    """One rank and what it knows before it is let go. `at_round` hears of each exchange before it
    begins."""

    job: Job
    together: Collective
    parameters: list[Parameter]
    at_round: Callable[[int], None] = lambda turn: None

    @property
    def on_host(self) -> bool:
        return self.together.device.kind == "cpu"

    def targets(self) -> list[torch.Tensor]:
        """Fresh memory for the parameters, on the rank's device."""
        if self.on_host:
            return fresh_targets(self.parameters)
        place = self.together.device.torch_device
        return [
            torch.empty(one.shape, dtype=torch_dtype(one.dtype), device=place)
            for one in self.parameters
        ]


def read_all(rank: Rank, watch: Stopwatch) -> Loaded:
    """As engines do by default: every rank maps every file, narrows each tensor and copies the
    view. What of the files is touched depends on the cuts; the page cache is shared."""
    with watch.stamp("allocate"):
        targets = rank.targets()
    with ExitStack() as stack:
        with watch.stamp("open"):
            mapped = dict(stack.enter_context(mapped_tensors(rank.job.checkpoint)))
        cut_stock(mapped, rank.parameters, targets)
        mapped.clear()
    rank.together.device.synchronize()
    return Loaded(targets=targets)


def prefetch(rank: Rank, watch: Stopwatch) -> Loaded:
    """The same, while rank r reads `files[r::world]` ahead into the page cache, rank and world
    being those of all nodes (vLLM 0.33, prefetch strategy): on several nodes, each warms only its
    own ranks' share. The engine lets late readers run on; here they end with the load."""
    stop = Event()
    with ThreadPoolExecutor(PREFETCH_THREADS, thread_name_prefix="prefetch") as pool:
        mine = rank.job.checkpoint.files[rank.together.rank :: rank.together.world]
        reads = [pool.submit(read_away, file.path, PREFETCH_BLOCK, stop) for file in mine]
        try:
            loaded = read_all(rank, watch)
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
    ended = [read for read in reads if not read.cancelled()]
    loaded.notes = [f"prefetch failed: {one.exception()}" for one in ended if one.exception()]
    return loaded


def read_slices(rank: Rank, watch: Stopwatch) -> Loaded:
    """Each rank reads directly, around the page cache, the ranges that it keeps."""
    with watch.stamp("allocate"):
        host = fresh_targets(rank.parameters)
        targets = host if rank.on_host else rank.targets()
    notes = read_sliced(
        rank.job.checkpoint,
        rank.parameters,
        [raw(target) for target in host],
        threads=rank.job.threads,
    )
    if not rank.on_host:
        with watch.stamp("transfer"):
            for target, source in zip(targets, host, strict=True):
                rank.together.device.copy_(target, source)
            rank.together.device.synchronize()
    ranges = fetches(rank.job.checkpoint, rank.parameters)
    return Loaded(targets=targets, asked=fetched_bytes(ranges), notes=summed(notes))


def scatter(rank: Rank, watch: Stopwatch) -> Loaded:
    """Each rank reads 1/world of the bytes, directly, and sends what others keep."""
    with watch.stamp("allocate"):
        targets = rank.targets()
    with watch.stamp("open"):
        every = rank.job.parameters(range(rank.together.world))
        shares = Shares(rank.job.checkpoint, every)
    notes = read_and_scatter(
        shares,
        rank.together.rank,
        rank.parameters,
        targets,
        exchange=rank.together.exchange,
        stamp=watch.stamp,
        threads=rank.job.threads,
        at_round=rank.at_round,
    )
    rank.together.device.synchronize()
    asked = shares.asked_bytes(rank.together.rank)
    return Loaded(targets=targets, asked=asked, notes=summed(notes))


ACTS: Mapping[Way, Callable[[Rank, Stopwatch], Loaded]] = {
    "read-all": read_all,
    "read-slices": read_slices,
    "scatter": scatter,
    "prefetch": prefetch,
}


def kept_bytes(parameters: Sequence[Parameter]) -> int:
    return sum(one.kept_bytes for one in parameters)
