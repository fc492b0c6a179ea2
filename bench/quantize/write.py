"""Quantises a checkpoint into a new folder: whole or absent, and a run that was cut off goes on."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import xxhash

from bench.progress import Progress
from bench.quantize import describe
from bench.quantize.plan import Plan, Shard
from bench.quantize.shard import Quantisers, digest, write_shard
from bench.sizes import format_size
from bench.synth.place import write_json
from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.quantised import DESCRIPTION
from loaders.quantise.reference import Counts
from loaders.system.space import free_bytes

STATE: Final = "coldload-quantize.json"
_WEIGHTS: Final = (
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".h5", ".msgpack", ".tensors",
    ".incomplete", ".index.json",
)  # fmt: skip


class WriteError(Exception):
    """The checkpoint could not be finished; the text says what is kept and how to go on."""


class TargetError(WriteError):
    """It can't be there: something is, another run is at it, or one with other settings began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A finished checkpoint: its folder, weight files by name with sizes, how many of them were
    there from a run before, which scales were replaced, how it was quantised ("torch.compile" or
    "row blocks") and the seconds that compiling took."""

    folder: Path
    files: dict[str, int]
    resumed: int
    counts: Counts
    how: str
    compile_seconds: float


def staging_of(dest: str | os.PathLike[str]) -> Path:
    """The hidden folder beside `dest` that holds what is done so far."""
    target = Path(dest).resolve()
    return target.with_name(f".{target.name}.quantizing")


def write_quantised(
    checkpoint: Checkpoint,
    plan: Plan,
    dest: str | os.PathLike[str],
    *,
    progress: Progress,
    compiled: bool = True,
) -> Written:
    """Writes `plan` for `checkpoint` into the new folder `dest`, a shard at a time.

    It grows in `staging_of(dest)`; each shard is synced and noted with its checksum, and the folder
    is renamed when all are there. A run that ends early leaves it, and the same run again goes on
    with the first shard that isn't there or isn't what was noted. `progress` is called with bytes
    done and bytes in all. Memory holds one weight with its values.

    TargetError, WriteError (no space, an OSError), LoadError for a source that can't be read,
    QuantiseError for a weight that can't be quantised.
    """
    # By name: a dangling link is something, too. And "" would be this folder.
    if os.path.lexists(dest) or not os.fspath(dest):
        raise TargetError(
            f"{dest or 'DEST'} exists already and is never overwritten: remove it, or name another "
            "folder"
        )
    staging = staging_of(dest)
    settings = _settings(checkpoint, plan)
    try:
        with _locked(staging):
            state = _begin(staging, settings)
            _check_space(staging, plan, state)
            written = _shards(checkpoint, plan, staging, state, progress, compiled)
            _finish(checkpoint, plan, staging)
            target = Path(dest).resolve()
            if os.path.lexists(target):
                raise TargetError(f"{target} appeared meanwhile; what is done is in {staging}")
            staging.rename(target)
            (target / STATE).unlink()  # not before: a run that is cut off here has to go on
            _sync_folder(target)
            _sync_folder(target.parent)
    except OSError as error:
        text = f"{dest}: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            text += "; free some space"
        raise WriteError(f"{text}; the same command goes on from what {staging} holds") from error
    return Written(folder=target, **written)


def _settings(checkpoint: Checkpoint, plan: Plan) -> dict[str, Any]:
    """What a run that goes on must have in common with the one that began."""
    files = {}
    for file in checkpoint.files:
        files[file.name] = _seen(file.path)
    content = json.dumps([describe.index(plan), plan.ignored]).encode()
    return {
        "source": checkpoint.root,
        "files": files,
        "format": plan.format,
        "scheme": plan.scheme.name,
        "plan": xxhash.xxh3_128_hexdigest(content),
    }


def _seen(path: str) -> list[int]:
    """By which a file is known again: size and time of change."""
    found = Path(path).stat()
    return [found.st_size, found.st_mtime_ns]


@contextlib.contextmanager
def _locked(staging: Path) -> Iterator[None]:
    """The staging folder, made if need be, and nobody else's meanwhile."""
    try:
        staging.mkdir(parents=True, exist_ok=True)
        folder = os.open(staging, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise TargetError(f"{staging}: can't be made ({error.strerror or error})") from error
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TargetError(f"{staging}: another run is writing there; wait for it") from None
        yield
    finally:
        os.close(folder)


def _begin(staging: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The state of the run that began, or of this one. TargetError if that had other settings."""
    path = staging / STATE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if any(staging.iterdir()):
            raise TargetError(f"{staging}: not from a run like this one; remove it") from None
        state = {"settings": settings, "done": {}}
        _save(path, state)
        return state
    except ValueError:
        raise TargetError(
            f"{path}: damaged, so what is there can't be used; remove {staging}"
        ) from None
    if state.get("settings") != settings:
        differ = [key for key, value in settings.items() if state["settings"].get(key) != value]
        raise TargetError(
            f"{staging}: a run with other settings began there (different: {', '.join(differ)}); "
            "run it again as it was, or remove that folder"
        )
    assert isinstance(state, dict)
    return state


def _shards(
    checkpoint: Checkpoint,
    plan: Plan,
    staging: Path,
    state: dict[str, Any],
    progress: Progress,
    compiled: bool,
) -> dict[str, Any]:
    quantisers = Quantisers(plan.scheme, compiled)
    zero = underflowed = resumed = done = 0
    files = {}
    progress(0, plan.nbytes)
    for shard in plan.shards:
        path = staging / shard.name
        note = state["done"].get(shard.name)
        if note is not None and _is_there(path, note):
            resumed += 1
        else:
            note = _one(checkpoint, plan, shard, path, quantisers)
            source = checkpoint.file(shard.source).path
            if _seen(source) != state["settings"]["files"][shard.source]:
                path.unlink()
                raise WriteError(
                    f"{source}: changed since it was examined, so {staging} holds parts of two "
                    "checkpoints: remove it, then run the same again"
                )
            state["done"][shard.name] = note
            _save(staging / STATE, state)
        zero, underflowed = zero + note["zero"], underflowed + note["underflowed"]
        files[shard.name] = int(note["size"])
        done += shard.nbytes
        progress(done, plan.nbytes)
    return {
        "files": files,
        "resumed": resumed,
        "counts": Counts(zero=zero, underflowed=underflowed),
        "how": quantisers.how,
        "compile_seconds": quantisers.compile_seconds,
    }


def _is_there(path: Path, note: dict[str, Any]) -> bool:
    """Whether a shard is what was noted: a power cut may have taken what was written."""
    try:
        same = path.stat().st_size == note["size"] and digest(path) == note["digest"]
        return bool(same)
    except FileNotFoundError:
        return False


def _one(
    checkpoint: Checkpoint, plan: Plan, shard: Shard, path: Path, quantisers: Quantisers
) -> dict[str, Any]:
    partial = path.with_name(f"{path.name}.part")
    partial.unlink(missing_ok=True)
    source = checkpoint.file(shard.source).path
    counts = write_shard(shard, source, partial, plan.scheme, quantisers)
    partial.rename(path)
    _sync_folder(path.parent)
    return {
        "size": path.stat().st_size,
        "digest": digest(path),
        "zero": counts.zero,
        "underflowed": counts.underflowed,
    }


def _finish(checkpoint: Checkpoint, plan: Plan, staging: Path) -> None:
    """All but the weights: what says how they are stored, and copies of everything else."""
    described = {"config.json": describe.config(plan, dict(checkpoint.config or {}))}
    if len(plan.shards) > 1 or plan.format == "ascend":
        described[plan.index_name] = describe.index(plan)
    if plan.format == "ascend":
        described[DESCRIPTION] = describe.description(plan)
    for name, content in described.items():
        (staging / name).unlink(missing_ok=True)  # of a run that was cut off right here
        write_json(staging / name, content)
    for source, place in _others(Path(checkpoint.root)):
        if str(place) in described:
            continue
        (staging / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, staging / place)
    _sync_folder(staging)


def _others(root: Path) -> Iterator[tuple[Path, Path]]:
    """Files beside the weights and where they go: no weights of any kind, nothing hidden. Links
    are followed, since those of a download cache point out of the folder."""
    for folder, folders, names in os.walk(root, followlinks=False):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if Path(folder) != root and "config.json" in names and _hold_weights(names):
            folders.clear()  # another checkpoint: without its weights it would be a broken one
            continue
        for name in sorted(names):
            path = Path(folder) / name
            if not name.startswith(".") and not name.endswith(_WEIGHTS) and path.is_file():
                yield path, path.relative_to(root)


def _hold_weights(names: list[str]) -> bool:
    return any(name.endswith(_WEIGHTS) for name in names)


def _check_space(staging: Path, plan: Plan, state: dict[str, Any]) -> None:
    there = sum(int(note["size"]) for note in state["done"].values())
    need, have = plan.nbytes - there, free_bytes(staging)
    if have is not None and have < need:
        raise WriteError(
            f"{staging}: needs {format_size(need)} more, and {format_size(have)} are free on that "
            "file system; free some, then run the same again"
        )


def _save(path: Path, state: dict[str, Any]) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    write_json(fresh, state)
    fresh.replace(path)
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
