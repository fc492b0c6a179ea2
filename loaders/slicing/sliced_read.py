"""Slice while reading: only the ranges that a rank needs leave the storage, and each byte goes from
a small reused block straight to its place in the parameter."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from loaders.checkpoint.manifest import Checkpoint
from loaders.io.buffers import PAGE, allocate
from loaders.io.chunks import ChunkSource, Span
from loaders.io.sources import OpenSource
from loaders.slicing.execute import Raw, move, zero_padding
from loaders.slicing.fetch import GAP, Fetch, fetches
from loaders.slicing.plan import Parameter

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

    Each thread reads a block into a buffer of its own and carries its bytes to their places before
    it reads the next: while one copies, the others wait for the storage. Ranges that are no more
    than `gap` bytes apart are read as one. `open_source` opens files, else they are read around the
    page cache, or through it without `direct`. Returns path -> what is to
    be told about the file's reading. The first error of any thread is raised when all have ended.
    """
    plan = fetches(checkpoint, parameters, gap)
    paths = {file.name: file.path for file in checkpoint.files}
    spans = [Span(path=paths[one.file], offset=one.offset, length=one.length) for one in plan]
    source = ChunkSource(spans, block_bytes, direct=direct, open_source=open_source)
    lock = threading.Lock()
    errors: list[BaseException] = []

    def work() -> None:
        slot = allocate(block_bytes + PAGE, huge=huge)
        data = slot.array()
        try:
            while (taken := source.take()) is not None:
                chunk, file = taken
                # From a page to a page: sources that read directly take nothing else.
                first = chunk.offset % PAGE
                pages = -(-(first + chunk.length) // PAGE) * PAGE
                file.read(slot.view(0, pages), chunk.offset - first, first + chunk.length)
                source.give_back(chunk)
                for copy in plan[chunk.span].within(chunk.start, chunk.length):
                    move(copy, data, first + copy.source, targets[copy.parameter])
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
    zero_padding(parameters, targets)
    return source.notes
