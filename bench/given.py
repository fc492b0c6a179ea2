"""Runs as people name them on the command line: a folder, its records, `FOLDER:label` for one
storage of it. Shared by the commands that look at runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from bench.record.records import RecordsError, Run, read_run
from loaders.checkpoint.text import count, listed, printable
from loaders.store.address import is_address, masked


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A run, what it was called by, and the one storage of it that was asked for, if any."""

    name: str
    run: Run
    label: str | None = None


def read_given(text: str) -> Given:
    """The run at `text`, or one storage of it. RecordsError, with what to do, for what is no run,
    can't be read, or has no such storage. Broken lines are passed over and counted."""
    if is_address(text):
        raise RecordsError(f"{masked(text)}: expected a run's folder, found an address")
    path, label = text, None
    if not _exists(text) and ":" in text:
        path, label = text.rsplit(":", 1)
    try:
        run = read_run(Path(path), skip_broken=True)
    except ValueError as error:  # a zero byte in it
        raise RecordsError(
            f"{printable(text)}: {error}; give a run's folder, as in runs/"
        ) from error
    if label is not None:
        run = one_storage(run, label)
    return Given(name=text.rstrip("/"), run=run, label=label)


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def one_storage(run: Run, label: str) -> Run:
    """The run with the samples of that storage, and of those that read none."""
    labels = dict.fromkeys(sample.storage.label for sample in run.samples if sample.storage)
    if label not in labels:
        raise RecordsError(
            f"{run.path}: no storage is called {label!r}; it has {listed(labels) or 'none'}"
        )
    kept = (s for s in run.samples if s.storage is None or s.storage.label == label)
    return replace(run, samples=tuple(kept))


def losses(run: Run) -> str | None:
    """What of its file couldn't be read, in words."""
    parts = []
    if run.broken:
        lines = listed(run.broken)
        parts.append(f"{count(len(run.broken), 'line')} passed over as broken ({lines})")
    if run.cut:
        parts.append("its last line was cut off")
    if run.doubts:
        parts.append(f"taken as unknown: {listed(run.doubts, 3)}")
    return f"{run.path}: {'; '.join(parts)}" if parts else None
