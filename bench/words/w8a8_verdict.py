"""Does a checkpoint that was quantised offline save time? Pure; reads records only.

For each storage, cache state, device, layout and degree: `online` (bf16 read, sliced, quantised,
laid out) against `offline` (int8 read, sliced, laid out), paired by pass. Stages follow each other
in both, so seconds of stages add up to the total, and no remedy of one saves more than its share.

Where the two would be equal: online takes B/R + C (bytes B at the storage's rate R, all else C),
offline b/R + c. Equal at R = (B - b) / (c - C): a rate that exists only where offline does more
besides reading. Where it does less, it is quicker at every rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.record.records import Run, Sample, measured
from bench.record.stats import Difference, paired_saving
from bench.record.summary import STAGES

ONLINE, OFFLINE = "online", "offline"
PARTS = tuple(name for name in STAGES if name != "total")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What the ways are compared under. `into` is the layout of the weights, `ranks` the degrees
    ("tp8")."""

    storage: str
    cache: str
    device: str
    ranks: str
    into: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WayTimes:
    """One way, as medians over its passes: seconds in all and by stage (`stages`, those that took
    any), bytes asked of the files, of these `divided` by more ranks and `whole` for each of them,
    and the tensor bytes of the checkpoint."""

    total: float
    stages: Mapping[str, float]
    fetched: int
    divided: int
    whole: int
    checkpoint: int
    n: int

    def share(self, stage: str) -> float:
        """A stage's part of the total, from 0 to 1."""
        return self.stages.get(stage, 0.0) / self.total

    @property
    def besides_reading(self) -> float:
        """Seconds of all other stages."""
        return self.total - self.stages.get("read", 0.0)

    @property
    def read_rate(self) -> float | None:
        """Bytes per second of the read stage."""
        seconds = self.stages.get("read", 0.0)
        return self.fetched / seconds if seconds > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Of the saving, in seconds: `read` is `bytes_not_read` at the online way's rate, `quantise`
    the stage that there isn't any more, `rest` what is left of the measured saving (slicing half
    the bytes, getting less memory, and the rates of the two not being one)."""

    bytes_not_read: int
    read_rate: float
    read: float
    quantise: float
    rest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`saving` is online - offline; `equal` whether all samples came to the same state, `why` None
    without a rate. `break_even`: bytes per second of a storage at which both take as long, None
    where offline is quicker at every rate (`besides` seconds quicker even without any reading).
    `even_reasons`: the rate at which as much is saved by not reading as by everything else."""

    place: Place
    online: WayTimes
    offline: WayTimes
    saving: Difference
    equal: bool
    why: Why | None
    besides: float
    break_even: float | None
    even_reasons: float | None

    @property
    def shown(self) -> bool:
        """Whether a difference was shown: more than one pass, and 0 outside the bounds."""
        return self.saving.n > 1 and not self.saving.low <= 0.0 <= self.saving.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """The offline way where nothing was measured to compare it with: a model that is quantised
    already, or no copy of it."""

    place: Place
    offline: WayTimes


def places(run: Run) -> dict[Place, dict[str, list[Sample]]]:
    """Samples of the phase that have a time, by place and way; other cache states than the asked
    one are left out."""
    found: dict[Place, dict[str, list[Sample]]] = {}
    for sample in measured(run.settled()):
        if sample.phase != "w8a8" or sample.storage is None or not sample.seconds.total:
            continue
        if sample.cache.state not in {sample.cache.requested, "unverified"}:
            continue
        place = Place(
            storage=sample.storage.label,
            cache=sample.cache.requested,
            device=sample.device,
            ranks=sample.layout,
            into=str(sample.options.get("into", "")),
        )
        found.setdefault(place, {}).setdefault(sample.loader, []).append(sample)
    return found


def verdicts(run: Run) -> list[Verdict]:
    """One for each place with both ways in a common pass."""
    found = [
        _verdict(place, ways[ONLINE], ways[OFFLINE])
        for place, ways in places(run).items()
        if ONLINE in ways and OFFLINE in ways
    ]
    return [one for one in found if one is not None]


def alone(run: Run) -> list[Alone]:
    """The places with the offline way only."""
    return [
        Alone(place=place, offline=times(ways[OFFLINE]))
        for place, ways in places(run).items()
        if OFFLINE in ways and ONLINE not in ways
    ]


def times(samples: Sequence[Sample]) -> WayTimes:
    """Medians over the samples of one way; there is at least one."""
    details = samples[0].details
    needed = details.get("needed", {})
    return WayTimes(
        total=median(sample.seconds.total or 0.0 for sample in samples),
        stages={
            name: value
            for name in PARTS
            if (value := median(getattr(one.seconds, name) or 0.0 for one in samples)) > 0
        },
        fetched=int(details.get("fetched_bytes", 0)),
        divided=int(needed.get("divided", 0)),
        whole=int(needed.get("whole", 0)),
        checkpoint=int(details.get("tensor_bytes", 0)),
        n=len(samples),
    )


def _verdict(place: Place, online: Sequence[Sample], offline: Sequence[Sample]) -> Verdict | None:
    saving = paired_saving(_totals(online), _totals(offline))
    if saving is None:
        return None
    one, other = times(online), times(offline)
    digests = {sample.details.get("state_digest") for sample in (*online, *offline)}
    less, besides = one.fetched - other.fetched, one.besides_reading - other.besides_reading
    return Verdict(
        place=place,
        online=one,
        offline=other,
        saving=saving,
        equal=len(digests) == 1 and None not in digests,
        why=_why(one, other, saving),
        besides=besides,
        break_even=less / -besides if less > 0 > besides else None,
        even_reasons=less / besides if less > 0 and besides > 0 else None,
    )


def _totals(samples: Sequence[Sample]) -> dict[int, float]:
    return {sample.pass_number: sample.seconds.total or 0.0 for sample in samples}


def _why(online: WayTimes, offline: WayTimes, saving: Difference) -> Why | None:
    rate = online.read_rate
    if rate is None:
        return None
    less = online.fetched - offline.fetched
    quantise = online.stages.get("quantise", 0.0)
    return Why(
        bytes_not_read=less,
        read_rate=rate,
        read=less / rate,
        quantise=quantise,
        rest=saving.median - less / rate - quantise,
    )
