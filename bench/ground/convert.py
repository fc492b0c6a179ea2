"""A checkpoint rewritten into the format of a loader that reads no other. Made once, not timed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from bench.ground.leftovers import held, partial_of
from bench.ground.prepare import Prepared, check_space
from loaders import registry
from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.read import open_checkpoint
from loaders.checkpoint.tensorizer_file import TENSORS
from loaders.contract import Loader
from loaders.safetensors_mmap import SafetensorsMmap

if TYPE_CHECKING:
    from bench.snapshot.make import Request

_WITHOUT_NUMPY = ("bfloat16", "float8", "complex32")


class ConvertError(Exception):
    """The checkpoint can't be put into that format: which tensor, and why."""


def convert_to_tensorizer(source: Checkpoint, dest: Path) -> Path:
    """The folder `dest` with `model.tensors` and config.json; made now unless it is there already.
    Written beside and renamed, so it is whole or absent. The source's tensors stay mapped
    meanwhile, so nothing like the checkpoint's size is held in memory.

    ConvertError if tensorizer isn't installed, can't hold one of the tensors, or the source is an
    npcache; PrepareError if there is no room.
    """
    if dest.exists():
        return dest
    reason = registry.unavailable(registry.entries()["tensorizer"])
    if reason is not None:
        raise ConvertError(f"tensorizer's own format can't be written: {reason}")
    reader = _reader(source)
    _refuse(source)
    dest.parent.mkdir(parents=True, exist_ok=True)
    check_space(dest.parent, source.tensor_bytes)
    partial = partial_of(dest)
    try:
        partial.mkdir()
        with held(partial):
            _write(reader, source, partial / f"model{TENSORS}")
            config = Path(source.root) / "config.json"
            if config.is_file():
                shutil.copyfile(config, partial / "config.json")
            partial.rename(dest)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return dest


def convert_to_snapshot(
    ready: Prepared,
    dest: Path,
    progress: Callable[[int, int], None],
    request: Request | None = None,
) -> Path:
    """The folder `dest` with the snapshot of one rank that holds all, or of what is asked for; made
    now unless it is there already.

    ConvertError if it can't be made of this model, or what is there was made from another one;
    MakeError if there is no room.
    """
    # Imported here: whoever converts nothing needs neither torch's compiler nor rules.
    from bench.snapshot.make import Request, make_snapshot
    from loaders.slicing.errors import PlanError
    from loaders.snapshot.digests import content_of
    from loaders.snapshot.errors import StateError

    source, known = ready.checkpoint, ready.reference.digests
    if dest.exists():
        facts = open_checkpoint(dest, format="snapshot").facts
        if facts is None or facts["source"]["content"] != content_of(known):
            raise ConvertError(f"{dest}: made from other bytes; delete it, it will be made again")
        return dest
    name = Path(source.root).name
    try:
        make_snapshot(source, dest, request or Request(), name=name, progress=progress, known=known)
    except (PlanError, StateError) as error:
        raise ConvertError(f"no snapshot can be made: {error}") from error
    return dest


def _reader(source: Checkpoint) -> Loader:
    if source.format == "safetensors":
        return SafetensorsMmap()
    if source.format == "pt":
        return registry.get("pt")(mmap=True)
    raise ConvertError(f"{source.origin}: from {source.format} nothing is converted to tensorizer")


def _refuse(source: Checkpoint) -> None:
    """What tensorizer 2.12 can't write, and what it writes and then can't read: a file with one
    empty tensor of a dtype that numpy lacks can't be opened at all."""
    for spec in source.tensors:
        if spec.dtype == "float4_e2m1fn_x2":
            raise ConvertError(f"{spec.name} is {spec.dtype}, which tensorizer doesn't know")
        if spec.nbytes == 0 and spec.dtype.startswith(_WITHOUT_NUMPY):
            raise ConvertError(
                f"{spec.name} is an empty {spec.dtype} tensor; tensorizer writes such a file and "
                "then can't open it"
            )


def _write(reader: Loader, source: Checkpoint, path: Path) -> None:
    from tensorizer import TensorSerializer

    writer = TensorSerializer(str(path))
    try:
        writer.write_state_dict(dict(reader.load(source, lambda phase: nullcontext())))
    finally:
        writer.close()
    with path.open("rb") as written:
        os.fsync(written.fileno())
