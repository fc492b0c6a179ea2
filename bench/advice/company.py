"""Signs that the host wasn't alone with the run: then seconds are doubtful before any advice."""

from __future__ import annotations

from bench.records import Run, Sample, measured
from bench.summary import ceilings, noise, rows
from loaders.checkpoint.text import count

FOREIGN_SHARE, FOREIGN_BYTES = 0.1, 16 << 20
NOISE = 0.15
DRIFT = 2.0


def flags(run: Run) -> list[str]:
    """Each sign with its figures; empty where the records show none."""
    return [*_clocks(run), *_foreign_reads(run), *_noise(run), *_drift(run)]


def _clocks(run: Run) -> list[str]:
    again = len(run.samples) - len(run.settled())
    if not again:
        return []
    return [
        f"{count(again, 'sample')} had to be taken again because two clocks disagreed: something "
        f"kept this host's cores busy."
    ]


def _foreign_reads(run: Run) -> list[str]:
    """What others in the same control group read from the device during samples."""
    parted = [s for s in measured(run.settled()) if _others(s) > FOREIGN_BYTES]
    parted = [s for s in parted if _others(s) > FOREIGN_SHARE * (s.bytes or 0)]
    if not parted:
        return []
    most = max(_others(sample) for sample in parted)
    return [
        f"During {count(len(parted), 'sample')} others in this control group read from the device, "
        f"up to {most / 1e9:.2f} GB."
    ]


def _others(sample: Sample) -> int:
    cache = sample.cache
    if cache.group_read_bytes is None or cache.device_read_bytes is None:
        return 0
    return cache.group_read_bytes - cache.device_read_bytes


def _noise(run: Run) -> list[str]:
    loud = [(row, pair) for row, pair in noise(rows(run)) if abs(pair.median - 1) > NOISE]
    return [
        f"The same way ({row.title}, {row.group.cache} on {row.group.storage}) differed from "
        f"itself by {100 * abs(pair.median - 1):.0f} % within a pass."
        for row, pair in loud
    ]


def _drift(run: Run) -> list[str]:
    said = []
    for group, by_pass in ceilings(run).items():
        if group.cache != "cold" or group.ownership != "borrowed" or len(by_pass) < 2:
            continue
        low, high = min(by_pass.values()), max(by_pass.values())
        if low > 0 and high / low > DRIFT:
            said.append(
                f"What {group.storage} gives went from {low:.2f} to {high:.2f} GB/s between "
                f"passes: others use it, or it is throttled."
            )
    return said
