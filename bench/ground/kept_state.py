"""The snapshots that the ways named `restored` read: each made once, kept on the storage, not
timed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bench.ground.convert import ConvertError, convert_to_snapshot
from bench.ground.prepare import prepare
from bench.ground.quantised_copy import FORM as INT8
from bench.ground.quantised_copy import Means
from bench.ground.ready import Ground
from bench.progress import percents
from bench.record.cases import Case

if TYPE_CHECKING:
    from bench.snapshot.make import Request

RESTORED = "restored"
PLAIN = "view"
"""A layout that costs nothing, and that no file has: it is taken of what lies as usual."""


def form_of(case: Case) -> str:
    """The name of the form of the model that a case restores: its share, and of w8a8 the layout."""
    if case.phase == "w8a8":
        return f"{RESTORED}-{case.layout}-{INT8}-{case.options['into']}"
    return f"{RESTORED}-{case.layout}"


def lay_snapshots(label: str, stem: Path, means: Means, ground: Ground, *, real: bool) -> None:
    """Makes what the run's cases restore on the storage `label`, where it isn't there, and adds it
    to the ground. Of w8a8 it is made of the quantised copy: its bytes are those that the other ways
    come to. What can't be made is noted."""
    if real and any(case.phase == "disk_to_host" for case in means.cases):
        return  # as large as the model again: only where somebody named these benches
    wanted = {
        form_of(case): case
        for case in means.cases
        if case.loader == RESTORED and case.storage == label
    }
    for form, case in wanted.items():
        source = ground.prepared.get((label, INT8 if case.phase == "w8a8" else ground.main))
        if source is None:
            continue  # the bench says why
        progress = percents(means.say, f"keeping the state of {case.layout}, on {label}")
        try:
            dest = stem.with_name(f"{stem.name}-{form}")
            made = convert_to_snapshot(source, dest, progress, _request(case))
        except ConvertError as error:
            ground.notes.append(f"nothing to restore for {case.phase}: {error}")
            continue
        ground.prepared[label, form] = prepare(made, means.work, f"{label}-{form}", "snapshot")


def _request(case: Case) -> Request:
    """The middle rank, as the other ways assemble it."""
    # Imported here: whoever restores nothing needs neither torch nor rules.
    from bench.phases.slicing import degrees_of
    from bench.snapshot.make import Request

    degrees = degrees_of(case.layout)
    into = str(case.options["into"])
    laid = case.phase == "w8a8" and into != PLAIN
    return Request(
        degrees=degrees,
        ranks=(degrees.tp // 2,),
        layout=into if laid else None,  # type: ignore[arg-type]  # a name of loaders.quantise.layout
    )
