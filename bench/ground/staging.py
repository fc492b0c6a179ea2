"""Staging: a checkpoint is first copied to local disk or shared memory, and loaded from there."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import floor
from pathlib import Path

from bench.ground.leftovers import held, partial_of
from bench.progress import Progress
from bench.run.limits import shm_room
from bench.sizes import format_size
from loaders.checkpoint.manifest import Checkpoint
from loaders.io.chunks import Chunk, Span, plan_chunks
from loaders.io.readers import OpenFile, read_into
from loaders.store.address import is_address
from loaders.store.errors import StoreError
from loaders.store.ranges import Ranges
from loaders.system.memory import available_bytes
from loaders.system.mounts import mount_of
from loaders.system.space import free_bytes

CHUNK = 16 << 20


class StagingError(Exception):
    """It can't be staged there: what is needed, what there is, what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """What was copied, and how long it took: until the last byte was there, flushed to the device
    where there is one. `counts` of the store's requests, empty for a copy between folders."""

    path: Path
    nbytes: int
    seconds: float
    counts: dict[str, int]


def stage(
    checkpoint: Checkpoint,
    dest: Path,
    *,
    threads: int = 8,
    progress: Progress = lambda done, total: None,
    retries: int = 5,
) -> StageResult:
    """Copies the checkpoint's weight files and its config.json to the new folder `dest`, `threads`
    ranges at a time. The folder appears under its name only when it is whole and on the device.

    StagingError: `dest` exists, or there isn't room for the files; LimitError for shared memory
    without room; StoreError for what the store doesn't give; OSError.
    """
    if dest.exists():
        raise StagingError(f"{dest}: is there already; name a new folder, or delete it")
    room(dest.parent, checkpoint.file_bytes)
    partial = partial_of(dest)
    began = time.perf_counter()
    ranges: Ranges | None = None
    try:
        partial.mkdir()
        addresses = [file.path for file in checkpoint.files if is_address(file.path)]
        if addresses:
            ranges = Ranges(addresses[0], concurrency=threads, retries=retries)
        with held(partial):
            _copy(checkpoint, partial, ranges, threads, progress)
            if checkpoint.config is not None:
                (partial / "config.json").write_text(json.dumps(checkpoint.config))
            partial.rename(dest)
    finally:
        if ranges is not None:
            ranges.close()
        shutil.rmtree(partial, ignore_errors=True)
    return StageResult(
        path=dest,
        nbytes=checkpoint.file_bytes,
        seconds=time.perf_counter() - began,
        counts=dict(ranges.counts) if ranges is not None else {},
    )


def room(folder: Path, need: int) -> None:
    """StagingError (LimitError for shared memory) unless `need` bytes, and one in a hundred more on
    a disk, are free below an existing folder."""
    if not folder.is_dir():
        raise StagingError(f"{folder}: expected an existing folder to stage into")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StagingError(f"{folder}: can't be written to; stage into another folder")
    mount = mount_of(folder)
    if mount is not None and mount.fs_type == "tmpfs":
        shm_room(folder, need)
        have = available_bytes()
        if have < need:  # the file system's own limit may be larger than what is free
            raise StagingError(
                f"{folder}: {format_size(need)} of memory needed to stage the checkpoint, "
                f"{format_size(have)} free; stage into a folder on a disk"
            )
        return
    room = free_bytes(folder)
    if room is not None and room < need * 1.01:
        raise StagingError(
            f"{folder}: {format_size(need)} needed to stage the checkpoint, {format_size(room)} "
            "free; stage into another folder"
        )


def there_before(data: Path) -> frozenset[str]:
    """What a folder holds before anything is staged into it, so that only the new is removed."""
    return frozenset(path.name for path in data.iterdir()) if data.is_dir() else frozenset()


def remove_new(data: Path, before: frozenset[str]) -> None:
    """Removes what a run put into the folder, and the folder if nothing else is in it."""
    if not data.is_dir():
        return
    for path in data.iterdir():
        if path.name in before:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # something else is in it
        data.rmdir()


def break_even_loads(stage: float, direct: float, staged: float) -> int | None:
    """From how many loads on staging pays: the least n with stage + n * staged < n * direct, all in
    seconds; None if it never does, because a staged load isn't faster than a direct one."""
    if direct <= staged:
        return None
    return floor(stage / (direct - staged)) + 1


def _copy(
    checkpoint: Checkpoint,
    folder: Path,
    ranges: Ranges | None,
    threads: int,
    progress: Progress,
) -> None:
    spans = [Span(path=file.path, offset=0, length=file.size) for file in checkpoint.files]
    targets = []
    for file in checkpoint.files:
        target = folder / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        targets.append(target)
        with target.open("wb") as opened:
            opened.truncate(file.size)
    copying = _Copying(spans, targets, ranges, progress)
    with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="stage") as pool:
        futures = [pool.submit(copying.copy, chunk) for chunk in plan_chunks(spans, CHUNK)]
        try:
            for future in futures:
                future.result()
        except BaseException as error:
            if ranges is not None:
                ranges.stop()
            pool.shutdown(wait=True, cancel_futures=True)
            raise copying.first or error from None
    for target in targets:
        _flush(target)


class _Copying:
    """What the copying threads share. `first` is the error that came first; the others' may only
    say that they were stopped."""

    def __init__(
        self,
        spans: list[Span],
        targets: list[Path],
        ranges: Ranges | None,
        progress: Progress,
    ) -> None:
        self.first: Exception | None = None
        self._spans = spans
        self._targets = targets
        self._ranges = ranges
        self._progress = progress
        self._total = sum(span.length for span in spans)
        self._done = 0
        self._lock = threading.Lock()
        self._own = threading.local()

    def copy(self, chunk: Chunk) -> None:
        try:
            self._copy(chunk)
        except Exception as error:
            stopped = isinstance(error, StoreError) and error.kind == "stopped"
            with self._lock:
                if not stopped:
                    self.first = self.first or error
            if self._ranges is not None:
                self._ranges.stop()
            raise

    def _copy(self, chunk: Chunk) -> None:
        if not hasattr(self._own, "room"):
            self._own.room = memoryview(bytearray(CHUNK))
        block: memoryview = self._own.room[: chunk.length]
        path = self._spans[chunk.span].path
        if self._ranges is not None:
            self._ranges.fill(path, chunk.offset, block)
        else:
            with OpenFile(path) as file:
                read_into(file, block, chunk.offset)
        with self._targets[chunk.span].open("r+b", buffering=0) as target:
            written = 0
            while written < len(block):
                written += os.pwrite(target.fileno(), block[written:], chunk.offset + written)
        with self._lock:
            self._done += chunk.length
            self._progress(self._done, self._total)


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
