"""From a store, by range requests: HTTP, S3, the Hub, whatever fsspec has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from loaders.checkpoint.manifest import Checkpoint
from loaders.contract import Loader, OptionValue, Place, Stamp
from loaders.io.buffers import PAGE, allocate
from loaders.io.chunks import Chunk, Span, plan_chunks
from loaders.io.errors import LoadError, TruncatedError
from loaders.io.tensors import by_file, tensor_over
from loaders.parallel import span_of
from loaders.registry import register
from loaders.store.address import is_address, masked
from loaders.store.errors import StoreError
from loaders.store.ranges import Ranges


@register
class Remote(Loader):
    """One buffer per file, from its first tensor to its last; N threads fill them by range requests
    in the order of the offsets, over HTTP straight from the socket. Each tensor is yielded once its
    last chunk is there. Nothing is read ahead and nothing is read twice but what a cut cost."""

    name = "remote"
    summary = "N range requests at a time from a store (HTTP, S3, hf, fsspec) into fresh memory"
    formats = frozenset({"safetensors"})
    ownership = "owned"
    place: ClassVar[Place] = "address"
    options: ClassVar[Mapping[str, OptionValue]] = {
        "chunk_mib": 16,
        "retries": 5,
        "timeout": 30,
        "wait_ms": 200,
    }
    threaded = True

    def __init__(self, threads: int = 1, **given: OptionValue) -> None:
        """`chunk_mib`: the size of a request. `retries`: how often one is tried again, `wait_ms`
        how long after the first failure (doubling). `timeout`: seconds without a byte."""
        super().__init__(threads, **given)
        self.require_positive("chunk_mib", "timeout", "wait_ms")
        if int(self.settings["retries"]) < 0:
            self.require_positive("retries")

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[tuple[str, torch.Tensor]]:
        """LoadError, once, naming address, range, attempts and the last cause, for what can't be
        had. `counts` is filled as loading goes on (see loaders.store.ranges.Ranges)."""
        shards = [(_at_address(span_of(file, specs)), specs) for file, specs in by_file(checkpoint)]
        if not shards:
            return
        with stamp("open"):
            ranges = self._ranges(shards[0][0].path)
        self.counts = ranges.counts
        spans = [span for span, _ in shards]
        try:
            with stamp("allocate"):
                memory = [
                    allocate(span.offset % PAGE + span.length).view(span.offset % PAGE)
                    for span in spans
                ]
            fetch = _Fetch(ranges, spans, memory, self.threads, self._chunk_bytes)
            memory.reverse()
            with fetch:
                for number, (span, specs) in enumerate(shards):
                    view = memory.pop()
                    for spec in specs:
                        start = 0 if spec.offset is None else max(spec.offset - span.offset, 0)
                        fetch.wait(number, start + spec.nbytes if spec.nbytes else 0)
                        yield spec.name, tensor_over(view, start, spec)
                    del view
        finally:
            ranges.close()

    @property
    def _chunk_bytes(self) -> int:
        return int(self.settings["chunk_mib"]) << 20

    def _ranges(self, address: str) -> Ranges:
        try:
            return Ranges(
                address,
                concurrency=self.threads,
                retries=int(self.settings["retries"]),
                timeout=float(self.settings["timeout"]),
                first_wait=int(self.settings["wait_ms"]) / 1e3,
            )
        except StoreError as error:
            raise LoadError(str(error)) from error


def _at_address(span: Span) -> Span:
    """A path of this host is an address too, if not one to be measured by."""
    return span if is_address(span.path) else replace(span, path=f"file://{span.path}")


@dataclass(slots=True)
class _Asked:
    """A chunk on its way."""

    chunk: Chunk
    future: Future[None]


class _Fetch:
    """Threads that fetch the chunks of all spans, in order; leaving the context ends them. The
    chunks wait in the pool's queue, so that memory is held by what is still to come alone."""

    def __init__(
        self,
        ranges: Ranges,
        spans: Sequence[Span],
        memory: Sequence[memoryview],
        threads: int,
        chunk_bytes: int,
    ) -> None:
        self._ranges = ranges
        self._spans = spans
        self._first: tuple[Chunk, StoreError] | None = None
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="remote")
        self._asked: list[_Asked] = []
        try:
            for chunk in plan_chunks(spans, chunk_bytes):
                into = memory[chunk.span][chunk.start : chunk.start + chunk.length]
                future = self._pool.submit(self._fetch, chunk, into)
                self._asked.append(_Asked(chunk, future))
        except BaseException:  # no more threads to be had: those that there are must end
            self.close()
            raise
        self._asked.reverse()  # the next one to arrive is the last

    def wait(self, span: int, nbytes: int) -> None:
        """Blocks until the first `nbytes` of the span have arrived. LoadError."""
        while self._asked:
            chunk = self._asked[-1].chunk
            if chunk.span > span or (chunk.span == span and chunk.start >= nbytes):
                return
            future = self._asked.pop().future
            try:
                future.result()
            except StoreError as error:
                # The others were stopped by the first failure: that one is the cause.
                of, cause = self._first or (chunk, error)
                if cause.found is not None:
                    path, end = masked(self._path_of(of)), of.offset + of.length
                    raise TruncatedError(path, expected=end, found=cause.found) from cause
                raise LoadError(str(cause)) from cause

    def __enter__(self) -> _Fetch:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    def close(self) -> None:
        self._ranges.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _path_of(self, chunk: Chunk) -> str:
        return self._spans[chunk.span].path

    def _fetch(self, chunk: Chunk, into: memoryview) -> None:
        try:
            self._ranges.fill(self._path_of(chunk), chunk.offset, into)
        except StoreError as error:
            if error.kind != "stopped":
                self._first = self._first or (chunk, error)
            self._ranges.stop()
            raise
