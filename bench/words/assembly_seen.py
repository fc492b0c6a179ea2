"""What assembling a rank's parameters took, loader by loader: its stages alone, their sum, and
overlapped. Pure; reads records only.

The bound is the slowest stage alone, which nothing that overlaps can beat. Reading is a sample of
its own: a loader reads on in threads of its own while its tensors are sliced, so what a staged
sample stamps as reading can be less than reading takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.record.records import Run, Sample, measured
from bench.record.stats import Ratio, paired_ratio
from bench.record.summary import ByPass, group_of, simulated
from bench.words.phrases import bounds, where
from loaders.pipeline.stages import sequential, slowest

STAGES = ("allocate", "read", "slice", "transfer")
OURS, STOCK = "", "stock"
KEPT = "restored"
"""The way that assembles nothing: bench.words.snapshot_pays tells of it."""

INTO = {"parameters", "nowhere"}
"""What samples of this kind read into: nowhere is reading alone."""


@dataclass(slots=True)
class Walked:
    """One loader's way to the parameters. Seconds by pass, for `stages` by pass and stage."""

    read: ByPass = field(default_factory=dict)
    stages: dict[int, dict[str, float]] = field(default_factory=dict)
    overlapped: ByPass = field(default_factory=dict)

    def alone(self, number: int) -> Mapping[str, float] | None:
        """The stages of a pass, each by itself; None where the pass lacks one. Our own way has
        none between reading and the parameters."""
        if number not in self.read:
            return None
        rest = self.stages.get(number)
        if rest is None and self.stages:
            return None
        return {**(rest or {}), "read": self.read[number]}

    @property
    def passes(self) -> dict[int, Mapping[str, float]]:
        return {n: found for n in sorted(self.read) if (found := self.alone(n)) is not None}

    @property
    def bound(self) -> ByPass:
        return {number: slowest(stages)[1] for number, stages in self.passes.items()}

    @property
    def sum(self) -> ByPass:
        return {number: sequential(stages) for number, stages in self.passes.items()}

    def middle(self, stage: str) -> float | None:
        found = [stages[stage] for stages in self.passes.values() if stage in stages]
        return median(found) if found else None

    @property
    def over_bound(self) -> Ratio | None:
        """How much longer the whole took, overlapped, than its slowest stage alone."""
        return paired_ratio(self.overlapped, self.bound)


@dataclass(slots=True, kw_only=True)
class Place:
    """One storage, cache state, device, share and part of the model. `ways` by loader: OURS, STOCK
    (which has no stages to tell apart) or its name and options. `nbytes` are the parameters'."""

    title: str
    storage: str
    nbytes: int = 0
    ways: dict[str, Walked] = field(default_factory=dict)


def places(run: Run) -> list[Place]:
    """In the order of their first samples; in smoke mode too."""
    found: dict[tuple[str, ...], Place] = {}
    for sample in measured(run.settled()):
        if sample.phase != "assemble" or sample.options.get("into") not in INTO:
            continue
        if sample.seconds.total and sample.loader != KEPT:
            key, title = _where(sample)
            storage = sample.storage.label if sample.storage else "memory"
            _add(found.setdefault(key, Place(title=title, storage=storage)), sample)
    return [place for place in found.values() if any(way.overlapped for way in place.ways.values())]


def _where(sample: Sample) -> tuple[tuple[str, ...], str]:
    group = group_of(sample)
    target = "host memory" if group.device == "cpu" else group.device
    if simulated(group):
        target += " (no figures of hardware)"
    part = str(sample.options.get("part", ""))
    title = f"{f'{part} model, ' if part else ''}{group.layout}, {where(group)}, into {target}"
    return (str(group.storage), group.cache, group.device, group.layout, part), title


def _add(place: Place, sample: Sample) -> None:
    seconds, number = sample.seconds, sample.pass_number
    name = STOCK if sample.loader == "stock" else str(sample.options.get("by", OURS))
    way = place.ways.setdefault(name, Walked())
    assert seconds.total is not None
    if sample.loader == "read-alone":
        way.read[number] = seconds.total
    elif sample.loader == "staged":
        found = {stage: getattr(seconds, stage) for stage in STAGES if stage != "read"}
        way.stages[number] = {stage: took for stage, took in found.items() if took is not None}
    else:
        way.overlapped[number] = seconds.total
        place.nbytes = sample.bytes or place.nbytes


def assembled(run: Run) -> list[str]:
    """A sentence for each place; empty in smoke mode, whose figures mean nothing."""
    if (run.plan or {}).get("smoke"):
        return []
    return [said for place in places(run) if (said := _said(place)) is not None]


def _said(place: Place) -> str | None:
    ours, stock = place.ways.get(OURS), place.ways.get(STOCK)
    if ours is None or not ours.overlapped:
        return None
    parts = []
    if (pair := ours.over_bound) is not None:
        parts.append(
            f"takes {pair.median:.2f} x ({_spread(pair)}) as long as reading alone "
            f"({median(ours.bound.values()):.2f} s)"
        )
    parts += _best_loader(place.ways)
    if stock is not None and (pair := paired_ratio(stock.overlapped, ours.overlapped)) is not None:
        parts.append(f"it is {pair.median:.2f} x ({_spread(pair)}) as fast as the engine's way")
    if not parts:
        return None
    return (
        f"Parameters of {place.title}: overlapped, {median(ours.overlapped.values()):.2f} s, "
        f"{'; '.join(parts)}."
    )


def _best_loader(ways: Mapping[str, Walked]) -> list[str]:
    """The loader whose overlapped whole is the shortest, against its own bound."""
    made = {name: way for name, way in ways.items() if name not in {OURS, STOCK}}
    made = {name: way for name, way in made.items() if way.overlapped}
    if not made:
        return []
    name = min(made, key=lambda one: median(made[one].overlapped.values()))
    way = made[name]
    text = f"by {name} it is {median(way.overlapped.values()):.2f} s"
    if way.sum:
        text += f", {median(way.sum.values()):.2f} s one stage after another"
    if (pair := way.over_bound) is not None:
        stage = _slowest_of(list(way.passes.values()))
        text += f", {pair.median:.2f} x ({_spread(pair)}) its slowest stage alone ({stage})"
    return [text]


def _slowest_of(passes: Sequence[Mapping[str, float]]) -> str:
    names = [slowest(stages)[0] for stages in passes]
    return max(names, key=names.count)


def _spread(pair: Ratio) -> str:
    return bounds(pair) if pair.n > 1 else "one pass, no spread known"
