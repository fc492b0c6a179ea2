"""What a run would do, before it does it: how long it takes, what it writes and reads. Looks at
names, headers, free space and earlier runs; measures nothing and makes nothing.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.ground.groundwork import can_run, formats_of, lies_on
from bench.ground.prepare import shape_folder
from bench.ground.probe import FILE_BYTES
from bench.ground.storages import Place, Storage, Store
from bench.record.cases import Case
from bench.record.records import RECORDS
from bench.run import budget
from bench.settings import Settings
from bench.sizes import format_size, short_size
from bench.synth.shapes import shape_names
from loaders.checkpoint.manifest import Checkpoint, UnreadableError
from loaders.checkpoint.read import open_checkpoint
from loaders.checkpoint.resolve import Resolved, resolve_model
from loaders.store.address import masked

RUNS = Path("runs")
LOOK_BYTES = 20 * FILE_BYTES
"""About what the trials of a first look read."""

LOOK_SECONDS = 10.0
MADE = 0.3e9
"""Bytes per second assumed for making a checkpoint, and for reading its reference: one core's
hashing and the disk."""

EXAMPLES = (0.5e9, 3e9)
"""Bytes per second that stand for a slow and a fast storage, where none was looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """`size` in bytes, None where it can't be known yet. `seconds` are (least, most) of measuring,
    equal where the storages were looked at before; `before` what comes before it. Bytes by the
    storage's label; `written` stays there, `read` is the most. `notes` say what else holds."""

    model: str
    size: int | None
    seconds: tuple[float, float] | None = None
    before: float = 0.0
    written: Mapping[str, int] = field(default_factory=dict)
    read: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def forecast(settings: Settings, places: Sequence[Place], cases: Sequence[Case]) -> Forecast:
    """Errors of groundwork.REFUSALS for a model that can't be read."""
    try:
        with _no_download():
            found = resolve_model(settings.model, shapes=shape_names())
    except UnreadableError as error:
        if "/" not in settings.model or settings.model.startswith((".", "/", "~")):
            raise
        said = str(error).splitlines()[0]
        return Forecast(model=settings.model, size=None, notes=(f"to be downloaded first: {said}",))
    looks = {place.label: earlier_look(place) for place in places if isinstance(place, Storage)}
    if found.shape is not None:
        return _of_shape(found.shape, settings, places, cases, looks)
    return _of_model(found, settings, places, cases, looks)


@contextmanager
def _no_download() -> Iterator[None]:
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        del os.environ["HF_HUB_OFFLINE"]
        if before is not None:
            os.environ["HF_HUB_OFFLINE"] = before


def _of_shape(
    shape: str,
    settings: Settings,
    places: Sequence[Place],
    cases: Sequence[Case],
    looks: Mapping[str, budget.Rates | None],
) -> Forecast:
    folders = [place for place in places if isinstance(place, Storage)]
    measured = can_run(cases)
    size, notes = settings.size, []
    known = {label: rates for label, rates in looks.items() if rates is not None}
    if len(known) == len(looks) and not settings.smoke:
        size = budget.fit(measured, settings.passes, size, settings.budget, known)
        if size < settings.size:
            notes.append(
                f"halved from {format_size(settings.size)} to fit --budget={settings.budget:.0f}s"
            )
    elif not settings.smoke:
        notes.append(f"halved, if need be, to fit --budget={settings.budget:.0f}s")
    formats = formats_of(cases)
    written = {}
    for place in folders:
        folder = shape_folder(place.data, shape, size, None)
        lacking = [name for name in formats if not (folder / name).exists()]
        written[place.label] = len(lacking) * size
        if lacking and len(lacking) < len(formats):
            notes.append(f"on {place.label}, {len(formats) - len(lacking)} format(s) are there")
    references = {place.label: len(formats) * size for place in folders}
    seconds = _seconds(measured, settings.passes, size, looks, {})
    if seconds is not None and len(known) < len(looks) and not settings.smoke:
        seconds = min(seconds[0], settings.budget), min(seconds[1], settings.budget)
    making = (sum(written.values()) + sum(references.values())) / MADE
    return Forecast(
        model=shape,
        size=size,
        seconds=seconds,
        before=making + LOOK_SECONDS * len(folders),
        written=written,
        read=_read(measured, settings, size, references),
        notes=tuple(notes),
    )


def _of_model(
    found: Resolved,
    settings: Settings,
    places: Sequence[Place],
    cases: Sequence[Case],
    looks: Mapping[str, budget.Rates | None],
) -> Forecast:
    checkpoint: Checkpoint = open_checkpoint(found.address or str(found.path))
    size, nbytes = checkpoint.tensor_bytes, checkpoint.file_bytes
    written, notes = {}, []
    for place in places:
        if isinstance(place, Store):
            continue
        named = settings.storages or place.staged is not None
        away = found.address is not None or (named and not lies_on(checkpoint, place))
        written[place.label] = nbytes if away else 0
        if away:
            notes.append(f"copied to {place.label}, unless it was before")
    links = {place.label: EXAMPLES[0] for place in places if isinstance(place, Store)}
    measured = can_run(cases)
    references = {place.label: nbytes for place in places}
    copied = sum(written.values()) / MADE
    return Forecast(
        model=found.text if found.address is None else masked(found.address),
        size=size,
        seconds=_seconds(measured, settings.passes, size, looks, links),
        before=copied + sum(references.values()) / MADE + LOOK_SECONDS * len(looks),
        written=written,
        read=_read(measured, settings, size, references),
        notes=(*notes, "a real model isn't cut to fit --budget"),
    )


def _seconds(
    cases: Sequence[Case],
    passes: int,
    size: int,
    looks: Mapping[str, budget.Rates | None],
    links: Mapping[str, float],
) -> tuple[float, float] | None:
    """(least, most): from the rates that were seen; from EXAMPLES where one wasn't."""
    both = []
    for rate in EXAMPLES:
        guess = budget.Rates(direct=rate, cold=rate, warm=max(rate, 2e9))
        rates = {label: found or guess for label, found in looks.items()}
        known = dict.fromkeys(links, rate)
        both.append(budget.run_seconds(cases, passes, size, rates, known))
    return min(both), max(both)


def _read(
    cases: Sequence[Case], settings: Settings, size: int, references: Mapping[str, int]
) -> dict[str, int]:
    found = budget.run_bytes(cases, settings.passes, size)
    looked = 0 if settings.smoke else LOOK_BYTES
    return {label: found.get(label, 0) + nbytes + looked for label, nbytes in references.items()}


def earlier_look(place: Storage, runs: Path = RUNS) -> budget.Rates | None:
    """The rates that the latest run found which looked at the place's mount; None without one."""
    found = sorted(runs.glob(f"*/{RECORDS}"), reverse=True) if runs.is_dir() else []
    for path in found:
        host = _host_line(path)
        for label, facts in ((host.get("host") or {}).get("storage") or {}).items():
            look = (host.get("first_look") or {}).get(label) or {}
            same = (facts.get("mount_point"), _disk(facts))
            if look.get("rates") and same == (place.record.mount, place.record.device):
                return budget.Rates(**look["rates"])
    return None


def _host_line(path: Path) -> dict[str, Any]:
    """The host line of a run, which stands among its first; empty where there is none."""
    try:
        with path.open() as lines:
            for _, line in zip(range(5), lines, strict=False):
                found = json.loads(line)
                if found.get("kind") == "host":
                    return dict(found)
    except (OSError, ValueError, AttributeError):  # a broken run tells nothing, and hides nothing
        return {}
    return {}


def _disk(facts: Mapping[str, Any]) -> str | None:
    block = facts.get("block") or {}
    return block.get("disk")


def case_lines(cases: Sequence[Case], places: Sequence[Place]) -> list[str]:
    """A line for each case: what, and where."""
    paths = {
        place.label: str(place.path) if isinstance(place, Storage) else masked(place.address)
        for place in places
    }
    lines = []
    for case in cases:
        what = case.title if case.threads is None else f"{case.title}, {case.threads} threads"
        where = "memory" if case.storage is None else f"{case.storage} ({paths[case.storage]})"
        if case.cache != "none":
            where += f", {case.cache}"
        if case.device != "cpu" or case.phase == "host_to_device":
            where += f", {case.device}"
        if case.layout != "tp1":
            where += f", {case.layout}"
        lines.append(f"{case.phase:<15} {what:<44} {where}")
    return lines


def lines_of(found: Forecast, cases: Sequence[Case], passes: int) -> list[str]:
    """The forecast in words."""
    phases = Counter(case.phase for case in cases)
    each = ", ".join(f"{phase} {number}" for phase, number in phases.items())
    size = "of unknown size" if found.size is None else short_size(found.size)
    said = [
        "This run would measure, and nothing has been measured or made yet:",
        f"  model   {found.model}, {size}" + "".join(f"; {note}" for note in found.notes),
        f"  cases   {len(cases)} x {passes} pass{'es' * (passes > 1)}: {each}",
    ]
    if found.seconds is not None:
        said.append(
            f"  time    {_time(found.seconds)}, after about {_span(found.before)} of set-up"
        )
    for words, by_label in (("writes  ", found.written), ("reads   ", found.read)):
        for label, nbytes in by_label.items():
            most = "at most " if words.startswith("reads") and nbytes else ""
            kept = (
                ", kept in .coldload for the next run" if words.startswith("w") and nbytes else ""
            )
            said.append(f"  {words}{most}{format_size(nbytes)} on {label}{kept}")
    return said


def _time(seconds: tuple[float, float]) -> str:
    least, most = seconds
    if most - least < 0.01 * most:
        return f"about {_span(most)}"
    return (
        f"{_span(least)} to {_span(most)} (no run looked at this storage before: "
        f"{EXAMPLES[1] / 1e9:.0f} GB/s, and {EXAMPLES[0] / 1e9} GB/s)"
    )


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
