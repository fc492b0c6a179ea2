"""Slice while reading: only the ranges that a rank needs leave the storage, and each byte goes to
its place in the parameter, straight from the file or from a small reused block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from loaders.checkpoint.manifest import Checkpoint
from loaders.io.buffers import PAGE, Buffer, allocate
from loaders.io.chunks import Chunk, ChunkSource, Span
from loaders.io.sources import OpenSource, Source
from loaders.slicing.execute import Raw, zero_padding
from loaders.slicing.fetch import GAP, Fetch, fetches
from loaders.slicing.plan import Parameter
from loaders.slicing.straight import Target, bring

DEFAULT_BLOCK = 4 << 20


def fetched_bytes(plan: Sequence[Fetch]) -> int:
    """Bytes that the ranges ask the storage for."""
    return sum(one.length for one in plan)


def read_sliced(
    checkpoint: Checkpoint,
    parameters: Sequence[Parameter],
    targets: Sequence[Raw],
    *,
    threads: int,
    block_bytes: int = DEFAULT_BLOCK,
    direct: bool = True,
    huge: bool = True,
    gap: int = GAP,
    open_source: OpenSource | None = None,
) -> dict[str, list[str]]:
    """Fills `targets` (uint8, one for each parameter, as many bytes) from the files.

    Each thread takes a block at a time: what lies in the file as in memory (loaders.slicing
    .straight) is read to its place, the rest into a buffer of the thread's own, from where it is
    carried before the next block is read: while one copies, the others wait for the storage. Ranges
    that are no more than `gap` bytes apart are read as one. `open_source` opens files, else they
    are read around the page cache, or through it without `direct`. Returns path -> what is to be
    told about the file's reading. The first error of any thread is raised when all have ended.
    """
    plan = fetches(checkpoint, parameters, gap)
    into = [Target.of(target) for target in targets]

    def act(chunk: Chunk, file: Source, slot: Buffer) -> None:
        copies = list(plan[chunk.span].within(chunk.start, chunk.length))
        bring(chunk, file, copies, slot, into)

    source = _source(checkpoint, plan, block_bytes, direct, open_source)
    _by_readers(source, act, threads, block_bytes, huge)
    zero_padding(parameters, targets)
    return source.notes


def read_only(
    checkpoint: Checkpoint,
    parameters: Sequence[Parameter],
    *,
    threads: int,
    block_bytes: int = DEFAULT_BLOCK,
    open_source: OpenSource | None = None,
) -> dict[str, list[str]]:
    """The same blocks by the same threads, into their buffers and no further: what no way of
    filling the parameters can be faster than. Returns and raises as `read_sliced`."""

    def act(chunk: Chunk, file: Source, slot: Buffer) -> None:
        bring(chunk, file, (), slot, ())

    plan = fetches(checkpoint, parameters)
    source = _source(checkpoint, plan, block_bytes, True, open_source)
    _by_readers(source, act, threads, block_bytes, True)
    return source.notes


def _source(
    checkpoint: Checkpoint,
    plan: Sequence[Fetch],
    block_bytes: int,
    direct: bool,
    open_source: OpenSource | None,
) -> ChunkSource:
    paths = {file.name: file.path for file in checkpoint.files}
    spans = [Span(path=paths[one.file], offset=one.offset, length=one.length) for one in plan]
    return ChunkSource(spans, block_bytes, direct=direct, open_source=open_source)


def _by_readers(
    source: ChunkSource,
    act: Callable[[Chunk, Source, Buffer], None],
    threads: int,
    block_bytes: int,
    huge: bool,
) -> None:
    """`act` on each chunk, by threads that have a buffer each. Closes the source."""
    lock = threading.Lock()
    errors: list[BaseException] = []

    def work() -> None:
        slot = allocate(block_bytes + PAGE, huge=huge)
        try:
            while (taken := source.take()) is not None:
                chunk, file = taken
                act(chunk, file, slot)
                source.give_back(chunk)
        except BaseException as error:
            source.stop()
            with lock:
                errors.append(error)

    readers = [threading.Thread(target=work, daemon=True) for _ in range(max(threads, 1))]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    source.close()
    if errors:
        raise errors[0]
