"""From samples to rows: rates, shares of the ceiling, medians. Pure; reads records only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Any

from bench.record.cachestate import as_shared, share_of
from bench.record.records import Run, Sample, Seconds, measured
from bench.record.stats import Ratio, Spread, paired_ratio, spread

GB = 1e9

# Ceiling readers -> for which kind of memory, in which cache state, they are the ceiling. What
# doesn't read a storage has no label: it holds for all of them.
CEILING_OF: Mapping[str, tuple[tuple[str, str], ...]] = {
    "direct-ring": (("borrowed", "cold"), ("mapped", "cold")),
    "fio": (("borrowed", "cold"), ("mapped", "cold")),
    "cache-ring": (("borrowed", "warm"),),
    "owned-read": (("owned", "cold"), ("owned", "warm")),
    "memory-read": (("mapped", "warm"),),
    "first-touch": (("owned", "none"),),
}

TOP_OF: Mapping[str, str] = {
    "host_to_device": "whole",
    "slice": "copy",
    "quantise": "floor",
    "layout": "copy",
}
"""Phases whose ceiling is a contestant of their own: in the same passes, the same bytes."""

SIMULATED = "simulated"
ByPass = dict[int, float]


STAGES = tuple(field.name for field in fields(Seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What is ranked against each other: one phase, one storage, one asked-for cache state, one
    kind of memory, on one device, for one share of the model, of one subject (a rule of cutting, a
    scheme of quantising)."""

    storage: str | None
    cache: str
    ownership: str
    phase: str = "disk_to_host"
    device: str = "cpu"
    layout: str = "tp1"
    subject: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A case in one cache state as verified. Rates in GB/s, `percent` of the group's ceiling paired
    by pass, seconds and counts as medians over the passes, memory in bytes; `fetched` is what came
    from the device."""

    case: str
    title: str
    loader: str
    options: Mapping[str, Any]
    twin: bool
    group: Group
    state: str
    threads: int | None
    rates: ByPass
    rate: Spread
    percent: Spread | None
    seconds: Mapping[str, float]
    cpu_per_gb: float | None
    cpu_share: float | None
    system_share: float | None
    major_faults: float | None
    minor_faults: float | None
    peak_bytes: float | None
    fetched: float | None
    absent: float | None
    nbytes: int
    notes: tuple[str, ...]

    @property
    def apart(self) -> bool:
        """Whether it was seen to be in another cache state than the asked one: such a row is never
        the best of its group, however fast."""
        if share_of(self.group.cache) is not None and self.state == "mixed":
            return False
        return self.state not in {self.group.cache, "unverified"}


def title_of(sample: Sample) -> str:
    """A sample's loader with its options, `[A/A]` behind a twin."""
    options = ", ".join(
        f"{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in sorted(sample.options.items())
        if key != "twin"
    )
    name = sample.loader + (f" ({options})" if options else "")
    return f"{name} [A/A]" if sample.options.get("twin") else name


def rate_of(sample: Sample) -> float | None:
    """GB/s of a sample, payload bytes over its whole time."""
    if not sample.bytes or not sample.seconds.total:
        return None
    return sample.bytes / sample.seconds.total / GB


def phases_of(run: Run) -> list[str]:
    """The phases that were measured, reading first, the ceilings left out."""
    found = dict.fromkeys(
        sample.phase
        for sample in measured(run.samples)
        if sample.phase != "ceiling" and rate_of(sample) is not None
    )
    return sorted(found, key=lambda phase: phase != "disk_to_host")


def ceilings(run: Run) -> dict[Group, ByPass]:
    """For each group the best rate of its ceilings in each pass, in GB/s. Ceilings that read no
    storage stand under storage None."""
    found: dict[Group, ByPass] = {}
    for sample in measured(run.samples):
        rate = rate_of(sample)
        if sample.phase != "ceiling" or rate is None or sample.cache.state == "mixed":
            continue  # a cold reading that found a part in memory would be a false ceiling
        label = sample.storage.label if sample.storage else None
        asked = sample.cache.requested
        for ownership, cache in CEILING_OF.get(sample.loader, ()):
            if label is not None and cache != asked:
                continue
            by_pass = found.setdefault(Group(storage=label, cache=cache, ownership=ownership), {})
            by_pass[sample.pass_number] = max(rate, by_pass.get(sample.pass_number, 0.0))
    return found


def ceiling_for(group: Group, found: Mapping[Group, ByPass]) -> ByPass:
    """A group's ceiling in GB/s by pass, else the one of memory alone; empty without."""
    anywhere = Group(storage=None, cache=group.cache, ownership=group.ownership)
    return found.get(group) or found.get(anywhere) or {}


def rows(run: Run, phase: str = "disk_to_host") -> list[Row]:
    """The phase's rows, the best of each group first; samples whose state wasn't the asked one
    make a row of their own, behind the others."""
    tops = ceilings(run) if phase == "disk_to_host" else tops_within(run, phase)
    by_key: dict[tuple[str, str], list[Sample]] = {}
    for sample in measured(run.samples):
        if sample.phase == phase and rate_of(sample) is not None:
            by_key.setdefault((sample.case, seen(sample)), []).append(sample)
    made = [_row(samples, tops, run.cores) for samples in by_key.values()]
    return sorted(made, key=lambda row: (_order(row.group), row.apart, -row.rate.median))


def seen(sample: Sample) -> str:
    """The cache state in which it was seen to be; of an asked share that isn't there, the one that
    is, so that it is never averaged with the others."""
    cache = sample.cache
    if share_of(cache.requested) is None or cache.state != "mixed":
        return cache.state
    if as_shared(cache.requested, cache.resident_before):
        return "mixed"
    return f"{100 * (cache.resident_before or 0.0):.0f} % resident"


def group_of(sample: Sample) -> Group:
    """What the sample is ranked within."""
    return Group(
        storage=sample.storage.label if sample.storage else None,
        cache=sample.cache.requested,
        ownership=sample.ownership or "owned",
        phase=sample.phase,
        device=_device(sample),
        layout=sample.layout,
        subject=_subject(sample.options),
    )


def hardware(group: Group) -> bool:
    """Whether its device is an accelerator, and a real one."""
    return group.device != "cpu" and not simulated(group)


def simulated(group: Group) -> bool:
    """Whether its device is made up, whose figures are none of hardware."""
    return group.device.startswith(SIMULATED)


def _device(sample: Sample) -> str:
    """As the record names it; a simulated one is called so wherever it is shown, and is never
    ranked with hardware."""
    found = sample.details.get("device")
    inner = found.get("simulated") if isinstance(found, Mapping) else None
    if inner or sample.details.get("simulated"):
        return f"{SIMULATED} {sample.device}"
    return sample.device


def _subject(options: Mapping[str, Any]) -> str:
    if "each" in options:
        return "tensors of one size"
    if "devices" in options:
        return f"to {options['devices']} devices at once"
    return str(options.get("rule", options.get("scheme", options.get("into", ""))))


def tops_within(run: Run, phase: str) -> dict[Group, ByPass]:
    """For each group of a phase that has its ceiling among its contestants, that one's rates."""
    found: dict[Group, ByPass] = {}
    for sample in measured(run.samples):
        rate = rate_of(sample)
        if sample.phase == phase and sample.loader == TOP_OF.get(phase) and rate is not None:
            found.setdefault(group_of(sample), {})[sample.pass_number] = rate
    return found


def _order(group: Group) -> tuple[str, float, int, str, str, str]:
    caches = {"cold": 0.0, "warm": 1.0, "none": 2.0}
    share = share_of(group.cache)
    state = share.fraction if share is not None else caches.get(group.cache, 9.0)
    kinds = {"mapped": 0, "borrowed": 1, "owned": 2, "device": 3}
    return (
        group.storage or "",
        state,
        kinds.get(group.ownership, 9),
        group.device,
        group.layout,
        group.subject,
    )


def _row(samples: Sequence[Sample], tops: Mapping[Group, ByPass], cores: int) -> Row:
    first = samples[0]
    group = group_of(first)
    rates = {sample.pass_number: rate_of(sample) or 0.0 for sample in samples}
    top = ceiling_for(group, tops)
    shares = [100 * rates[number] / top[number] for number in sorted(rates.keys() & top.keys())]
    found = spread(list(rates.values()))
    assert found is not None
    return Row(
        case=first.case,
        title=title_of(first),
        loader=first.loader,
        options=first.options,
        twin=bool(first.options.get("twin")),
        group=group,
        state=seen(first),
        threads=first.threads,
        rates=rates,
        rate=found,
        percent=spread(shares) if first.cache.state in {group.cache, "unverified"} else None,
        seconds=_stages(samples),
        cpu_per_gb=_middle(
            s.cpu_seconds / s.bytes * GB for s in samples if s.cpu_seconds and s.bytes
        ),
        cpu_share=_middle(
            s.cpu_seconds / s.seconds.total / cores
            for s in samples
            if s.cpu_seconds is not None and s.seconds.total
        ),
        system_share=_middle(
            s.system_seconds / s.cpu_seconds
            for s in samples
            if s.system_seconds is not None and s.cpu_seconds
        ),
        major_faults=_middle(s.major_faults for s in samples),
        minor_faults=_middle(s.minor_faults for s in samples),
        peak_bytes=_middle(
            s.peak_rss_bytes - s.rss_before_bytes
            for s in samples
            if s.peak_rss_bytes is not None and s.rss_before_bytes is not None
        ),
        fetched=_middle(s.cache.device_read_bytes for s in samples),
        absent=_middle(s.details.get("absent_bytes") for s in samples),
        nbytes=first.bytes or 0,
        notes=tuple(dict.fromkeys(note for s in samples for note in s.details.get("notes", ()))),
    )


def _stages(samples: Sequence[Sample]) -> dict[str, float]:
    """Median seconds of each stage that the samples have."""
    found = {}
    for name in STAGES:
        middle = _middle(getattr(sample.seconds, name) for sample in samples)
        if middle is not None:
            found[name] = middle
    return found


def _middle(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return median(present) if present else None


def groups(made: Sequence[Row]) -> dict[Group, list[Row]]:
    """Rows by group, in their order."""
    found: dict[Group, list[Row]] = {}
    for row in made:
        found.setdefault(row.group, []).append(row)
    return found


def ratio(a: Row, b: Row) -> Ratio | None:
    """How many times as fast a is as b, paired by pass."""
    return paired_ratio(a.rates, b.rates)


def noise(made: Sequence[Row]) -> list[tuple[Row, Ratio]]:
    """The A/A pairs: each twin with its ratio to the same contestant under its own name."""
    found = []
    for twin in (row for row in made if row.twin):
        plain = twin.title.removesuffix(" [A/A]")
        for row in made:
            same = (row.title, row.group, row.threads, row.state)
            if not row.twin and same == (plain, twin.group, twin.threads, twin.state):
                pair = ratio(twin, row)
                if pair is not None:
                    found.append((row, pair))
    return found
