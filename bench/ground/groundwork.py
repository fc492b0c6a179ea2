"""What is laid before the first sample: a look at each storage, the size that fits, the data.

Everything here is outside the measurement. What it decides (a smaller size, a loader that can't
run) is said in notes that the report shows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from bench.ground.convert import ConvertError, convert_to_snapshot, convert_to_tensorizer
from bench.ground.kept_state import lay_snapshots
from bench.ground.leftovers import remove_leftovers
from bench.ground.prepare import (
    Prepared,
    PrepareError,
    check_space,
    copy_model,
    hash_of,
    make_shape,
    prepare,
    prepare_address,
    shape_folder,
)
from bench.ground.probe import FILE_BYTES, write_probe_file
from bench.ground.quantised_copy import FORM, lay_quantised
from bench.ground.ready import FORMATS, Ground
from bench.ground.staging import StagingError, room, stage
from bench.ground.storages import Place, Storage, Store
from bench.measuring.children import ChildError, Server
from bench.measuring.cores import effective_cores
from bench.progress import Say, percents
from bench.record.cases import BY_LOADER, Case
from bench.record.records import RecordsError
from bench.run import budget
from bench.run.limits import LimitError
from bench.run.matrix import store_threads
from bench.settings import Settings
from bench.sizes import format_size, short_size
from bench.synth.place import MakeError
from bench.synth.scale import ScaleError
from bench.synth.shapes import ShapeError
from loaders import registry
from loaders.checkpoint.manifest import (
    Checkpoint,
    CheckpointError,
    Format,
    NoWeightsError,
    UnreadableError,
)
from loaders.checkpoint.read import open_checkpoint
from loaders.store.address import file_name, masked

LOOK_TIMEOUT = 300.0
SMOKE_FILE_BYTES = 32 << 20

OWN_FORMATS: tuple[Format, ...] = ("tensorizer", "snapshot")
"""Each read by the loader of the same name and no other."""

REFUSALS = (
    PrepareError,
    ConvertError,
    MakeError,
    ScaleError,
    ShapeError,
    CheckpointError,
    NoWeightsError,
    UnreadableError,
    ChildError,
    RecordsError,
    StagingError,
    LimitError,
    OSError,
)
"""What laying the ground ends with where it can't be laid: each says what to do, or which file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What the ground is laid with: the cases that will be measured decide which formats are made;
    `work` is a folder for the run's own files; `say` shows a line to whoever waits."""

    settings: Settings
    storages: Sequence[Place]
    cases: Sequence[Case]
    server: Server
    work: Path
    say: Say

    @property
    def folders(self) -> list[Storage]:
        return [place for place in self.storages if isinstance(place, Storage)]


def lay_shape(shape: str, means: Means) -> Ground:
    """For a built-in shape: looks at each storage, halves the size until the run fits its budget,
    makes the checkpoint in every format that a loader of the run reads."""
    ground = Ground(model=shape, bounded=not means.settings.smoke)
    for storage in means.folders:
        means.say(f"first look at {storage.label} ({storage.path})")
        ground.looks[storage.label] = _look_at_trial_file(storage, means)
    _choose_size(ground, means)
    formats = formats_of(means.cases)
    for storage in means.folders:
        folder = shape_folder(storage.data, shape, ground.size, None)
        lacking = [name for name in formats if not (folder / name).exists()]
        check_space(storage.path, len(lacking) * ground.size)
        if storage.staged is not None:  # and once more while the copy is timed
            room(storage.path, (len(lacking) + 1) * ground.size)
        for name in formats:
            what = f"{shape}, {ground.size_text}, {name}, on {storage.label}"
            progress = percents(means.say, f"making {what}")
            if name == "tensorizer":  # the only format that its own library has to write
                source = ground.prepared[storage.label, "safetensors"].checkpoint
                progress(0, 1)
                made = convert_to_tensorizer(source, folder / name)
            elif name == "snapshot":
                ready = ground.prepared[storage.label, "safetensors"]
                made = convert_to_snapshot(ready, folder / name, progress)
            else:
                made = make_shape(folder, shape, ground.size, name, progress)
            means.say(f"reading the reference of {what}")
            ready = prepare(made, means.work, f"{storage.label}-{name}", name)
            ground.prepared[storage.label, name] = ready
    _agree(ground, [storage.data for storage in means.folders])
    for storage in means.folders:
        folder = shape_folder(storage.data, shape, ground.size, None)
        lay_quantised(storage.label, folder / FORM, means, ground, real=False)
        lay_snapshots(storage.label, folder / "state", means, ground, real=False)
    _finish(ground, means.folders, next(iter(ground.prepared.values())).checkpoint)
    return ground


def lay_model(name: str, path: Path, means: Means) -> Ground:
    """For a real checkpoint: measured where it lies, or copied to each storage that was named and
    isn't where it lies."""
    checkpoint = open_checkpoint(str(path))
    ground = Ground(model=name, main=checkpoint.format)
    for storage in means.folders:
        folder = path
        if storage.staged is not None:
            room(storage.path, 2 * checkpoint.file_bytes)  # once more while the copy is timed
        named = means.settings.storages or storage.staged is not None
        if named and not lies_on(checkpoint, storage):
            make_room(storage)
            means.say(f"copying {name} to {storage.label}")
            folder = copy_model(checkpoint, storage.data, percents(means.say, f"copying {name}"))
        _lay_on(storage, folder, means, ground)
    _expect(ground, means, checkpoint, {})
    return ground


def lay_address(address: str, means: Means) -> Ground:
    """For a checkpoint in a store: measured at its address, and staged to each folder that was
    named. What was staged before is used again; where the address is measured too, it must hold
    the same bytes."""
    checkpoint = open_checkpoint(address)
    name = _model_name(address)
    ground = Ground(
        model=name,
        main=checkpoint.format,
        stores=frozenset(place.label for place in means.storages if isinstance(place, Store)),
    )
    links = {}
    for label in sorted(ground.stores):
        what = f"reading the reference of {masked(address)} ({label})"
        means.say(what)
        progress = percents(means.say, what)
        ready, seconds = prepare_address(checkpoint, means.work, f"{label}-model", progress)
        ground.prepared[label, checkpoint.format] = ready
        links[label] = checkpoint.tensor_bytes / seconds
    for storage in means.folders:
        make_room(storage)
        if storage.staged is not None:
            room(storage.path, 2 * checkpoint.file_bytes)
        folder = storage.data / f"{name}-{_store_hash(checkpoint):016x}"
        if not folder.exists():
            what = f"staging {name} on {storage.label}"
            means.say(what)
            threads = store_threads(effective_cores())
            stage(checkpoint, folder, threads=threads, progress=percents(means.say, what))
        _lay_on(storage, folder, means, ground)
        _same_as_in_store(storage, folder, ground)
    _expect(ground, means, checkpoint, links)
    return ground


def _model_name(address: str) -> str:
    """The last part of the address, for ids: no host, no query and no password is in it."""
    name = file_name(masked(address)).removesuffix("?***").removeprefix("***@")
    return re.sub(r"[^\w.+-]", "-", name) or "model"


def _store_hash(checkpoint: Checkpoint) -> int:
    """A number that stands for where it was (without what is secret) and what its headers say."""
    files = [(file.name, file.size) for file in checkpoint.files]
    tensors = [(spec.name, spec.dtype, spec.file, spec.offset) for spec in checkpoint.tensors]
    return xxhash.xxh3_64_intdigest(repr((checkpoint.origin, files, tensors)).encode())


def _same_as_in_store(storage: Storage, folder: Path, ground: Ground) -> None:
    staged = ground.prepared[storage.label, ground.main].reference.digests
    for label in ground.stores:
        if ground.prepared[label, ground.main].reference.digests != staged:
            raise PrepareError(
                f"{folder}: was staged before and holds other bytes than the store now; delete it, "
                "it will be copied again"
            )


def _lay_on(storage: Storage, folder: Path, means: Means, ground: Ground) -> None:
    """The real model in `folder`, ready to be measured there, and a look at the storage."""
    name = ground.model
    means.say(f"reading the reference of {name} on {storage.label}")
    ready = prepare(folder, means.work, f"{storage.label}-model", ground.main)
    ground.notes += _elsewhere(ready.checkpoint, storage)
    ground.prepared[storage.label, ground.main] = ready
    for form in OWN_FORMATS:
        if form != ground.main and any(choice.name == form for choice in means.settings.loaders):
            _convert(ready, form, storage, means, ground)
    stem = f"{Path(ready.checkpoint.root).name}-{hash_of(ready.checkpoint):016x}"
    lay_quantised(storage.label, storage.data / f"{stem}-{FORM}", means, ground, real=True)
    lay_snapshots(storage.label, storage.data / f"{stem}-state", means, ground, real=True)
    largest = max(ready.checkpoint.files, key=lambda file: file.size)
    means.say(f"first look at {storage.label} ({storage.path})")
    ground.looks[storage.label] = _look(Path(largest.path), means.server)


def _expect(
    ground: Ground, means: Means, checkpoint: Checkpoint, links: Mapping[str, float]
) -> None:
    """How long the run of a real model will take, and what else is said before it."""
    ground.size = checkpoint.tensor_bytes
    if means.settings.sized and not means.settings.smoke:
        ground.notes.append("--size is for built-in shapes: a real model is measured as it is")
    ground.size_text = short_size(ground.size)
    rates = {label: budget.Rates(**look["rates"]) for label, look in ground.looks.items()}
    ground.expected_seconds = budget.run_seconds(
        means.cases, means.settings.passes, ground.size, rates, links
    )
    if ground.expected_seconds > means.settings.budget and not means.settings.smoke:
        fewer = "--loader=safetensors-mmap --loader=parallel " if means.folders else ""
        ground.notes.append(
            f"a real model isn't cut to fit the budget: about {ground.expected_seconds / 60:.0f} "
            f"min expected; fewer: {fewer}--passes=1"
        )
    _finish(ground, means.folders, checkpoint)


def _convert(
    source: Prepared, form: Format, storage: Storage, means: Means, ground: Ground
) -> None:
    """A real model in the format of a loader that reads no other, as large as the model: only where
    that loader is asked for by name."""
    make_room(storage)
    what = f"converting for {form} on {storage.label}"
    means.say(what)
    checkpoint = source.checkpoint
    dest = storage.data / f"{Path(checkpoint.root).name}-{hash_of(checkpoint):016x}-{form}"
    if form == "tensorizer":
        made = convert_to_tensorizer(checkpoint, dest)
    else:
        made = convert_to_snapshot(source, dest, percents(means.say, what))
    ready = prepare(made, means.work, f"{storage.label}-{form}", form)
    ground.prepared[storage.label, form] = ready


def make_room(storage: Storage) -> None:
    """The storage's folder for test data, made if need be. PrepareError if nothing can be put
    there."""
    try:
        storage.data.mkdir(exist_ok=True)
        for folder in [storage.data, *storage.data.iterdir()]:
            remove_leftovers(folder)
        reason = None if os.access(storage.data, os.W_OK | os.X_OK) else "it isn't writable"
    except OSError as error:
        reason = error.strerror
    if reason is not None:
        raise PrepareError(
            f"{storage.data}: test data can't be put there ({reason}); name a folder that can be "
            f"written with --storage=, or with --model= a checkpoint that lies there already"
        )


def lies_on(checkpoint: Checkpoint, storage: Storage) -> bool:
    """Whether all of the checkpoint's bytes lie in the storage's folder already."""
    return all(storage.path in Path(file.path).resolve().parents for file in checkpoint.files)


def _elsewhere(checkpoint: Checkpoint, storage: Storage) -> list[str]:
    """A note where files are links to another file system than the storage's."""
    device = storage.path.stat().st_dev
    away = [file for file in checkpoint.files if Path(file.path).stat().st_dev != device]
    if not away:
        return []
    return [
        f"{storage.label}: {len(away)} of {len(checkpoint.files)} file(s) are links to another "
        f"file system than {storage.path}; what is said of the storage doesn't hold for them"
    ]


def _choose_size(ground: Ground, means: Means) -> None:
    settings, cases = means.settings, can_run(means.cases)
    rates = {label: budget.Rates(**look["rates"]) for label, look in ground.looks.items()}
    size = settings.size
    if not settings.smoke:
        size = budget.fit(cases, settings.passes, size, settings.budget, rates)
    ground.size = size
    ground.size_text = short_size(size)
    ground.expected_seconds = budget.run_seconds(cases, settings.passes, size, rates)
    if size < settings.size:
        ground.notes.append(
            f"size halved from {format_size(settings.size)} to {format_size(size)}, so that the "
            f"run fits --budget={settings.budget:.0f}s on this storage"
        )


def _look_at_trial_file(storage: Storage, means: Means) -> dict[str, Any]:
    # A run that was asked to be small needs no long look, and may not have the space for one.
    nbytes = min(FILE_BYTES, max(means.settings.size, SMOKE_FILE_BYTES))
    make_room(storage)
    check_space(storage.path, nbytes)
    trial = storage.data / "first-look.bin"
    try:
        write_probe_file(trial, nbytes)
        return _look(trial, means.server)
    finally:
        trial.unlink(missing_ok=True)


def _look(path: Path, server: Server) -> dict[str, Any]:
    child = server.fork("bench.ground.probe:first_look", path=str(path), cores=effective_cores())
    try:
        return child.hear(LOOK_TIMEOUT)
    finally:
        child.kill()


def can_run(cases: Sequence[Case]) -> list[Case]:
    """Those that take time: without the loaders that are skipped here."""
    entries = registry.entries()
    return [
        case
        for case in cases
        if case.phase not in BY_LOADER or registry.unavailable(entries[case.loader]) is None
    ]


def formats_of(cases: Sequence[Case]) -> list[Format]:
    """The formats that the loaders of the run read, of those that can run here; safetensors
    always, for the ceilings."""
    wanted: set[str] = {"safetensors"}
    for name in {case.loader for case in cases if case.phase in BY_LOADER}:
        entry = registry.entries()[name]
        if entry.cls is not None and registry.unavailable(entry) is None:
            wanted |= entry.cls.formats
    return [name for name in FORMATS if name in wanted]


def _agree(ground: Ground, folders: Sequence[Path]) -> None:
    """A made-up checkpoint holds the same bytes in every format and on every storage. PrepareError
    if not: a file was changed, or the storage gives back other bytes than it got."""
    all_digests = [
        ready.reference.digests
        for (_, name), ready in ground.prepared.items()
        if name != "snapshot"  # its parameters are others; its source was compared
    ]
    for digests in all_digests[1:]:
        if digests != all_digests[0]:
            places = " and ".join(map(str, folders))
            raise PrepareError(
                f"the made-up checkpoint isn't the same in every format and place; a file in "
                f"{places} was changed: delete what is there, it will be made again"
            )


def _finish(ground: Ground, storages: Sequence[Storage], checkpoint: Checkpoint) -> None:
    ground.dtype = next(iter(checkpoint.dtype_bytes), "-")
    for storage in storages:
        ready = ground.prepared[storage.label, ground.main]
        largest = max(ready.checkpoint.files, key=lambda file: file.size)
        storage.examine(Path(largest.path))
        if storage.residency.method is None:
            ground.notes.append(
                f"{storage.label}: what is in the page cache can't be told here "
                f"({storage.residency.reason}); cache states are `unverified`"
            )
