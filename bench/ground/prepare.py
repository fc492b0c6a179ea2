"""What has to lie on a storage before it can be measured: made-up checkpoints, or copies of a real
one. Both are kept between runs in `<storage>/.coldload/`."""

from __future__ import annotations

import os
import pickle
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import xxhash

from bench.ground.leftovers import held, partial_of
from bench.ground.remote_reference import read_remote_reference
from bench.measuring.verify import Reference, read_reference
from bench.progress import Progress
from bench.sizes import format_size, short_size
from bench.synth.scale import scale
from bench.synth.shapes import load_shape, with_dtype
from bench.synth.write import make_checkpoint
from loaders.checkpoint.manifest import Checkpoint, CheckpointError, Format
from loaders.checkpoint.read import open_checkpoint
from loaders.checkpoint.snapshot_file import wrong_checksums
from loaders.system.space import free_bytes

SHARDS = 4


class PrepareError(Exception):
    """The data can't be put there: what is needed, what there is, what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A checkpoint that is ready to be measured, with what the children need of it as files."""

    checkpoint: Checkpoint
    manifest_path: Path
    reference_path: Path
    reference: Reference

    @property
    def paths(self) -> list[Path]:
        return [Path(file.path) for file in self.checkpoint.files]

    @property
    def sizes(self) -> list[int]:
        return [file.size for file in self.checkpoint.files]


def shape_folder(data: Path, shape: str, size: int, dtype: str | None, seed: int = 0) -> Path:
    """Where a made-up checkpoint lies, by everything that decides its bytes: its dims too, which
    another version of coldload may have scaled otherwise. ShapeError or ScaleError for what can't
    be made."""
    dims = scale(with_dtype(load_shape(shape), dtype), size).dims
    text = ",".join(f"{name}={value}" for name, value in sorted(dims.items()))
    stamp = f"{xxhash.xxh3_64_intdigest(text.encode()):016x}"[:8]
    return data / f"{shape}-{short_size(size)}-{dtype or 'own'}-s{seed}-{stamp}"


def make_shape(folder: Path, shape: str, size: int, file_format: str, progress: Progress) -> Path:
    """The folder of a made-up checkpoint in one format; made now unless it is there already."""
    dest = folder / file_format
    if not dest.exists():
        folder.mkdir(parents=True, exist_ok=True)
        make_checkpoint(
            shape,
            dest,
            size=size,
            shards=SHARDS,
            format=file_format,
            dtype=None,
            seed=0,
            progress=progress,
        )
    return dest


def check_space(path: Path, need: int) -> None:
    """PrepareError unless `need` bytes and one in a hundred more are free at `path`."""
    have = free_bytes(path)
    if have is not None and have < need * 1.01:
        raise PrepareError(
            f"{path}: {format_size(need)} of test data needed, {format_size(have)} free; "
            f"take a smaller --size, another --storage, or delete {path / '.coldload'}"
        )


def copy_model(checkpoint: Checkpoint, data: Path, progress: Progress) -> Path:
    """A copy of a real checkpoint on the storage: weights and JSON files. A copy of the same files
    (names, sizes, times) is used again. Written beside and renamed, so it is whole or absent.
    PrepareError where it can't be written or read."""
    stamp = f"{hash_of(checkpoint):016x}"
    dest = data / f"{Path(checkpoint.root).name}-{stamp}"
    if dest.exists():
        return dest
    check_space(data.parent, checkpoint.file_bytes)
    data.mkdir(parents=True, exist_ok=True)
    partial = partial_of(dest)
    try:
        partial.mkdir()
        with held(partial):
            done = 0
            for name, source in _to_copy(checkpoint):
                target = partial / name
                target.parent.mkdir(parents=True, exist_ok=True)
                done = _copy_file(source, target, done, checkpoint.file_bytes, progress)
            partial.rename(dest)
    except OSError as error:
        raise PrepareError(f"{data}: can't copy {checkpoint.origin} there: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return dest


def hash_of(checkpoint: Checkpoint) -> int:
    """A number that stands for names, sizes and times of the weight files."""
    parts = [
        f"{file.name}:{file.size}:{Path(file.path).stat().st_mtime_ns}" for file in checkpoint.files
    ]
    return xxhash.xxh3_64_intdigest("\n".join(parts).encode())


def _to_copy(checkpoint: Checkpoint) -> Sequence[tuple[str, Path]]:
    weights = [(file.name, Path(file.path)) for file in checkpoint.files]
    names = {name for name, _ in weights}
    beside = [
        (path.name, path)
        for path in sorted(Path(checkpoint.root).glob("*.json"))
        if path.name not in names and path.is_file()  # a dangling link isn't needed
    ]
    return weights + beside


def _copy_file(source: Path, target: Path, done: int, total: int, progress: Progress) -> int:
    with source.open("rb") as reading, target.open("wb") as writing:
        while block := reading.read(16 << 20):
            writing.write(block)
            done += len(block)
            progress(min(done, total), total)
        writing.flush()
        os.fsync(writing.fileno())
    return done


def prepare(
    folder: Path, work: Path, name: str, file_format: Format | Literal["auto"] = "auto"
) -> Prepared:
    """Reads the manifest and the reference of a checkpoint and leaves both, pickled, in `work`,
    where the children find them. CheckpointError for a faulty one, and for a snapshot whose bytes
    aren't those that were written."""
    checkpoint = open_checkpoint(str(folder), format=file_format)
    reference = read_reference(checkpoint)
    if checkpoint.format == "snapshot":
        damaged = wrong_checksums(checkpoint, reference.digests)
        if damaged:
            raise CheckpointError(checkpoint.origin, tuple(damaged))
    return _left(checkpoint, reference, work, name)


def prepare_address(
    checkpoint: Checkpoint, work: Path, name: str, progress: Progress
) -> tuple[Prepared, float]:
    """The same for a checkpoint in a store, and the seconds that fetching all of it took.
    StoreError."""
    began = time.perf_counter()
    reference = read_remote_reference(checkpoint, progress=progress)
    seconds = time.perf_counter() - began
    return _left(checkpoint, reference, work, name), seconds


def _left(checkpoint: Checkpoint, reference: Reference, work: Path, name: str) -> Prepared:
    manifest_path, reference_path = work / f"{name}.manifest", work / f"{name}.reference"
    manifest_path.write_bytes(pickle.dumps(checkpoint))
    reference_path.write_bytes(pickle.dumps(reference))
    return Prepared(
        checkpoint=checkpoint,
        manifest_path=manifest_path,
        reference_path=reference_path,
        reference=reference,
    )
