"""Signs that the host wasn't alone with the run: then seconds are doubtful before any advice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.record.records import Company, Run, Sample, measured
from bench.record.summary import ceilings, noise, rows
from loaders.checkpoint.text import count

FOREIGN_SHARE, FOREIGN_BYTES = 0.1, 16 << 20
BUSY_SHARE, BUSY_SECONDS = 0.15, 0.1
"""Part of the processors, and processor seconds, from which others count: /proc/stat is told in
hundredths of a second, and what the kernel does for a sample isn't in the sample's own seconds."""

NOISE = 0.15
DRIFT = 2.0
MANY = "ranks"
"""The phase whose work is done by processes that the sample's own figures don't hold."""

WRITES = "stage"
"""The phase that writes itself."""


def flags(run: Run) -> list[str]:
    """Each sign with its figures; empty where the records show none."""
    return [
        *others_at_work(run),
        *_clocks(run),
        *_foreign_reads(run),
        *_noise(run),
        *_drift(run),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """What shows in a sample's company: a figure (None where it can't be told), from how much on it
    says something, and the words for the largest that was seen."""

    of: Callable[[Sample, Company], float | None]
    least: Callable[[Sample, int], float]
    words: str


def others_at_work(run: Run) -> list[str]:
    """What others did during samples, by the host's own counts: at the storage's disk, at the
    processors, in other virtual machines; and waiting for memory. One sentence each."""
    told = [
        (sample, sample.company)
        for sample in measured(run.settled())
        if sample.company is not None and sample.phase != MANY
    ]
    said = []
    for sign in SIGNS:
        found = []
        for sample, company in told:
            figure = sign.of(sample, company)
            if figure is not None and figure > sign.least(sample, run.cores):
                found.append(figure)
        if found:
            during = f"During {len(found)} of {count(len(told), 'sample')}"
            said.append(f"{during} {sign.words.format(max(found))}.")
    return said


def _read(sample: Sample, company: Company) -> float | None:
    own = sample.cache.device_read_bytes
    if company.disk_read_bytes is None or own is None:
        return None
    return (company.disk_read_bytes - own) / 1e9


def _written(sample: Sample, company: Company) -> float | None:
    if company.disk_written_bytes is None or sample.phase == WRITES:
        return None
    return company.disk_written_bytes / 1e9


def _worked(sample: Sample, company: Company) -> float | None:
    if company.cpu_seconds is None or sample.cpu_seconds is None or not sample.runner_seconds:
        return None
    return (company.cpu_seconds - sample.cpu_seconds) / sample.runner_seconds


def _stolen(sample: Sample, company: Company) -> float | None:
    if company.stolen_seconds is None or not sample.runner_seconds:
        return None
    return company.stolen_seconds / sample.runner_seconds


def _short(sample: Sample, company: Company) -> float | None:
    if company.memory_pressure_seconds is None or not sample.runner_seconds:
        return None
    return 100 * company.memory_pressure_seconds / sample.runner_seconds


def _much(sample: Sample, cores: int) -> float:
    return max(FOREIGN_BYTES, FOREIGN_SHARE * (sample.bytes or 0)) / 1e9


def _busy(sample: Sample, cores: int) -> float:
    return max(BUSY_SHARE * cores, BUSY_SECONDS / (sample.runner_seconds or 1.0))


SIGNS = (
    Sign(of=_read, least=_much, words="others read up to {:.2f} GB from the same disk"),
    Sign(of=_written, least=_much, words="others wrote up to {:.2f} GB to the same disk"),
    Sign(of=_worked, least=_busy, words="others kept up to {:.1f} cores busy"),
    Sign(
        of=_stolen,
        least=_busy,
        words="the hypervisor gave up to {:.1f} of this machine's cores to others",
    ),
    Sign(
        of=_short,
        least=lambda sample, cores: 10.0,
        words="tasks waited for memory, up to {:.0f} % of the time: the host is short of it",
    ),
)


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
