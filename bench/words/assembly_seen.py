"""What assembling a rank's parameters took: overlapped, against its slowest stage and against the
engine's way. Pure; reads records only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from bench.record.records import Run, Sample, measured
from bench.record.stats import Ratio, paired_ratio
from bench.record.summary import ByPass, group_of
from bench.words.phrases import bounds, where
from loaders.pipeline.stages import slowest

STAGES = ("read", "slice", "transfer")


@dataclass(slots=True)
class _Place:
    """One place, device and share of the model. Seconds by pass; of a staged loader, its whole and
    its stages."""

    overlapped: ByPass = field(default_factory=dict)
    stock: ByPass = field(default_factory=dict)
    staged: dict[str, ByPass] = field(default_factory=dict)
    stages: dict[str, dict[int, dict[str, float]]] = field(default_factory=dict)


def assembled(run: Run) -> list[str]:
    """A sentence for each place, cache state, device and layout. The bound is the lowest that any
    staged loader shows: the slowest of its stages, which nothing that overlaps can beat."""
    if (run.plan or {}).get("smoke"):
        return []
    places: dict[str, _Place] = {}
    for sample in measured(run.settled()):
        if sample.phase == "assemble" and sample.options.get("into") == "parameters":
            _add(places.setdefault(_name(sample), _Place()), sample)
    return [
        sentence for name, place in places.items() if (sentence := _said(name, place)) is not None
    ]


def _name(sample: Sample) -> str:
    group = group_of(sample)
    target = "host memory" if group.device == "cpu" else group.device
    return f"{group.layout}, {where(group)}, into {target}"


def _add(place: _Place, sample: Sample) -> None:
    seconds, number = sample.seconds, sample.pass_number
    if not seconds.total:
        return
    if sample.loader == "overlapped":
        place.overlapped[number] = seconds.total
    elif sample.loader == "stock":
        place.stock[number] = seconds.total
    elif sample.loader == "staged":
        name = str(sample.options.get("by"))
        place.staged.setdefault(name, {})[number] = seconds.total
        found = {stage: getattr(seconds, stage) for stage in STAGES}
        place.stages.setdefault(name, {})[number] = {
            stage: value for stage, value in found.items() if value is not None
        }


def _said(name: str, place: _Place) -> str | None:
    if not place.overlapped:
        return None
    parts = []
    bound, which = _bound(place.stages)
    if bound and (pair := paired_ratio(place.overlapped, bound)) is not None:
        parts.append(
            f"takes {pair.median:.2f} x ({_spread(pair)}) as long as the slowest stage alone "
            f"({which}, {median(bound.values()):.2f} s)"
        )
    if place.staged:
        best = min(place.staged, key=lambda one: median(place.staged[one].values()))
        parts.append(f"{best} stage by stage takes {median(place.staged[best].values()):.2f} s")
    if (pair := paired_ratio(place.stock, place.overlapped)) is not None:
        parts.append(f"it is {pair.median:.2f} x ({_spread(pair)}) as fast as the engine's way")
    if not parts:
        return None
    return (
        f"Parameters of {name}: overlapped, {median(place.overlapped.values()):.2f} s, "
        f"{'; '.join(parts)}."
    )


def _bound(stages: Mapping[str, Mapping[int, Mapping[str, float]]]) -> tuple[ByPass, str]:
    """In each pass the lowest of the loaders' slowest stages; and which stage of which loader it is
    most often."""
    found: ByPass = {}
    names: list[str] = []
    for number in sorted({number for of in stages.values() for number in of}):
        each = {loader: slowest(of[number]) for loader, of in stages.items() if of.get(number)}
        if each:
            loader = min(each, key=lambda one: each[one][1])
            found[number] = each[loader][1]
            names.append(f"{each[loader][0]} of {loader}")
    return found, max(names, key=names.count, default="")


def _spread(pair: Ratio) -> str:
    return bounds(pair) if pair.n > 1 else "one pass, no spread known"
