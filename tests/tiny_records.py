"""Made-up runs on the disk, as the commands read them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.record.records import RECORDS, Sample
from tests.tiny_report import HOST, NBYTES, PLAN


def write_run(
    folder: Path,
    samples: Iterable[Sample],
    *,
    host: dict[str, Any] | None = None,
    **plan: Any,
) -> Path:
    """A run's folder with a plan, a host and these samples; `host` replaces facts of the host."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = {**HOST, "host": {**HOST["host"], **(host or {})}}
    lines = [{**PLAN, **plan}, machine, *(sample.to_json() for sample in samples)]
    (folder / RECORDS).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def slower(sample: Sample, factor: float, *stages: str) -> Sample:
    """The sample with some stages taking `factor` times as long, and the total with them."""
    seconds = sample.seconds
    more = {name: getattr(seconds, name) * factor for name in stages}
    added = sum(more[name] - getattr(seconds, name) for name in stages)
    total = (seconds.total or 0.0) + added
    return replace(sample, seconds=replace(seconds, **more, total=total))


__all__ = ["NBYTES", "slower", "write_run"]
