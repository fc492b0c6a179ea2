"""Where a run's records go, and the seed of its orders."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import xxhash

from bench.record.records import RECORDS
from bench.settings import Settings, SettingsError


def check_run_dir(given: str | None) -> None:
    """SettingsError if a run can't be put there without harm to another one."""
    if given is None:
        return
    folder = Path(given)
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"--run-dir={given}: expected a folder, found a file there")
    if (folder / RECORDS).exists():
        raise SettingsError(f"--run-dir={given}: holds a run already; name a new folder")


def run_folder(settings: Settings) -> Path:
    """`--run-dir`, or `runs/<UTC time>`, which is new."""
    if settings.run_dir is not None:
        return Path(settings.run_dir)
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    folder = Path("runs") / stamp
    suffix = 2
    while folder.exists():
        folder = Path("runs") / f"{stamp}-{suffix}"
        suffix += 1
    return folder


def default_seed() -> int:
    """Another order in each run; recorded in its plan."""
    return xxhash.xxh32_intdigest(str(time.time_ns()).encode())
