"""A model's assembled state, rank by rank, into a new folder: whole or absent."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Literal

import torch

from bench.measuring.cores import effective_cores
from bench.progress import Progress
from bench.snapshot.sharded import PART, parts_of, write_parts
from bench.synth.place import new_folder, write_json
from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.text import listed, shown
from loaders.quantise.layout import Name
from loaders.quantise.schemes import scheme
from loaders.slicing.build import plan_rank
from loaders.slicing.complete import missing
from loaders.slicing.model import Model, model_of
from loaders.slicing.placement import check_degrees
from loaders.slicing.plan import Degrees
from loaders.snapshot.card import NAME, Card, to_json
from loaders.snapshot.digests import digests, source_of
from loaders.snapshot.engine_state import cache_scales, engine_name, why_not
from loaders.snapshot.errors import StateError
from loaders.snapshot.fill import Quantisers, fill
from loaders.snapshot.format import Header, Layout, Made, Source, file_name
from loaders.snapshot.state import Kept, Step, steps
from loaders.snapshot.write import outlined, write
from loaders.system.space import free_bytes

Form = Literal["snapshot", "sharded-state"]
READERS = 4
"""Threads that read slices, at least: they wait more than they copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be made. `ranks` empty: all of them; `quantise` a scheme's name; `layout` that of
    a device; `part_bytes` the most that a part of a sharded state has."""

    degrees: Degrees = field(default_factory=Degrees)
    ranks: tuple[int, ...] = ()
    quantise: str | None = None
    layout: Name | None = None
    form: Form = "snapshot"
    part_bytes: int = PART


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What was made: its folder, files by name with their sizes, bytes of parameters and how many
    there are of each rank, how it was quantised ("torch.compile", "row blocks", None), the seconds
    that the source's digest took and those of everything."""

    folder: Path
    files: Mapping[str, int]
    parameters: Mapping[int, int]
    nbytes: int
    how: str | None
    digest_seconds: float
    seconds: float


def make_snapshot(
    checkpoint: Checkpoint,
    dest: str | os.PathLike[str],
    request: Request,
    *,
    name: str,
    progress: Progress,
    known: Mapping[str, str] | None = None,
    free: Callable[[Path], int | None] = free_bytes,
    compiled: bool = True,
    batch_bytes: int = 256 << 20,
) -> Snapshot:
    """Writes the new folder `dest`. `name` is what the source is called in it; `known` are the
    source's digests, where somebody has read it already. `progress` is told of bytes read for the
    digest, written, and read back, and of how many there will be.

    StateError or slicing.errors.PlanError for what can't be made of this model, PlaceError and
    MakeError as bench.synth.place says (nothing is left behind), LoadError for a source that can't
    be read, QuantiseError, NotAsWrittenError.
    """
    began = time.monotonic()
    model = _planned(checkpoint, request)
    ranks = _ranks(model, request)
    every = {rank: _state(model, request, rank) for rank in ranks}
    blank = source_of(checkpoint, name, {})  # its content isn't known yet, only how long that is
    outlines = {rank: _outline(request, rank, every[rank], blank) for rank in ranks}
    kept_bytes = sum(header.nbytes for header, _ in outlines.values())
    need = sum(header.size for header, _ in outlines.values()) + (1 << 20)
    read = 0 if known is not None else checkpoint.tensor_bytes
    done = _Done(progress, read + 2 * kept_bytes)
    with new_folder(dest, need, free) as folder:
        threads = max(READERS, 2 * effective_cores())
        found = digests(checkpoint, threads=threads, on_bytes=done) if known is None else known
        digest_seconds = time.monotonic() - began
        source = source_of(checkpoint, name, found)
        quantisers = Quantisers(scheme(request.quantise) if request.quantise else None, compiled)
        config = Path(checkpoint.root) / "config.json"
        if config.is_file():
            shutil.copyfile(config, folder / "config.json")
        written: dict[int, dict[str, str]] = {}
        for rank in ranks:
            header, first = outlines[rank]
            made = replace(header.made, seconds=digest_seconds)
            header = replace(header, source=source, made=made)
            filled = fill(
                checkpoint, every[rank].steps, quantisers, threads=threads, batch_bytes=batch_bytes
            )
            tensors = every[rank].named(filled)
            written[rank] = _write(folder, request, header, first, tensors, threads, done)
        if request.form == "sharded-state":
            took = round(time.monotonic() - began, 3)
            layout = replace(header.layout, rank=0)
            made = replace(made, seconds=took)
            header = replace(header, layout=layout, made=made, parameters=())
            write_json(folder / NAME, to_json(Card(header=header, ranks=written)))
        files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    return Snapshot(
        folder=Path(dest).resolve(),
        files={name: size for name, size in files.items() if not name.endswith(".json")},
        parameters={rank: len(header.parameters) for rank, (header, _) in outlines.items()},
        nbytes=kept_bytes,
        how=quantisers.how,
        digest_seconds=digest_seconds,
        seconds=time.monotonic() - began,
    )


class _Done:
    """Adds up what is done."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0
        progress(0, total)

    def __call__(self, nbytes: int) -> None:
        self._done += nbytes
        self._progress(self._done, self._total)


def _planned(checkpoint: Checkpoint, request: Request) -> Model:
    origin = shown(checkpoint.origin)
    if checkpoint.format == "snapshot":
        raise StateError(f"{origin}: it is a snapshot already; give the checkpoint it was made of")
    strided = [spec.name for spec in checkpoint.tensors if spec.offset is None]
    if strided:
        raise StateError(
            f"{origin}: not one run of bytes in their file: {listed(strided)}; save them contiguous"
        )
    model = model_of(checkpoint)
    lacking = missing(model)
    if lacking:
        raise StateError(f"{origin}: a state of it would have holes: {'; '.join(lacking)}")
    if request.form == "sharded-state":
        reason = why_not(model)
        if request.quantise or request.layout:
            reason = (
                "the engine processes weights once more after it has read a sharded state, which "
                "spoils quantised or laid out ones; leave out --quantise and --layout"
            )
        if reason is not None:
            raise StateError(
                f"{origin}: no sharded state: {reason}; `--format snapshot` has no such limit"
            )
    return model


def _ranks(model: Model, request: Request) -> Sequence[int]:
    check_degrees(request.degrees, model.facts.experts)
    world = request.degrees.world
    beyond = [rank for rank in request.ranks if not 0 <= rank < world]
    if beyond:
        raise StateError(f"rank: expected 0 to {world - 1}, got {listed(beyond)}")
    return request.ranks or range(world)


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """What is made of a rank's plan: steps, what is kept of them under its name in the file, and
    what no tensor of the source has."""

    steps: tuple[Step, ...]
    kept: tuple[Kept, ...]
    more: tuple[tuple[Kept, torch.Tensor], ...] = ()

    @property
    def every(self) -> tuple[Kept, ...]:
        return (*self.kept, *(kept for kept, _ in self.more))

    def named(
        self, filled: Iterator[tuple[Kept, torch.Tensor]]
    ) -> Iterator[tuple[Kept, torch.Tensor]]:
        tensors = (tensor for _, tensor in filled)
        return chain(zip(self.kept, tensors, strict=True), self.more)


def _state(model: Model, request: Request, rank: int) -> _State:
    plan = plan_rank(model, request.degrees, rank)
    wanted = scheme(request.quantise) if request.quantise else None
    every = steps(plan.parameters, wanted, request.layout)
    kept = tuple(kept for step in every for kept in step.kept)
    if request.form == "snapshot":
        return _State(steps=every, kept=kept)
    named = tuple(replace(one, name=engine_name(one.name, model, plan)) for one in kept)
    return _State(steps=every, kept=named, more=tuple(cache_scales(plan)))


def _outline(request: Request, rank: int, state: _State, source: Source) -> tuple[Header, int]:
    """The header without what is known only while writing, and where the data begins."""
    degrees = request.degrees
    processed = request.quantise is not None or request.layout is not None
    blank = Header(
        layout=Layout(tp=degrees.tp, pp=degrees.pp, ep=degrees.ep, rank=rank),
        processing="post" if processed else "pre",
        device_layout=request.layout or "plain",
        quantisation=request.quantise,
        source=source,
        made=Made(
            coldload=importlib.metadata.version("coldload"), torch=torch.__version__, seconds=0.0
        ),
    )
    return outlined(blank, state.every)


def _write(
    folder: Path,
    request: Request,
    header: Header,
    first: int,
    tensors: Iterator[tuple[Kept, torch.Tensor]],
    threads: int,
    done: _Done,
) -> dict[str, str]:
    """The digests of what was written, by name."""
    if request.form == "snapshot":
        path = folder / file_name(header.layout)
        header = write(path, header, first, tensors, threads=threads, on_bytes=done)
        return {entry.name: entry.xxh3 for entry in header.parameters}
    parts = parts_of(header.parameters, request.part_bytes)
    return write_parts(folder, header.layout, parts, tensors, threads=threads, on_bytes=done)
