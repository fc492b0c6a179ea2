"""Which pictures a run, or several, give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from statistics import median

from bench.pictures.curves import Point, curve_picture
from bench.pictures.pairs import Pair, pairs_picture
from bench.pictures.rate import rate_picture
from bench.pictures.stages import stages_picture
from bench.pictures.style import BLUE, ORANGE, Picture, file_name
from bench.progress import Progress
from bench.record.records import Run, Sample, measured
from bench.record.summary import (
    Group,
    Row,
    ceilings,
    groups,
    phases_of,
    rate_of,
    rows,
    title_of,
    tops_within,
)
from bench.sizes import short_size
from bench.words.names import named, phase_words, place, threads
from bench.words.parts import told

Album = list[Picture]


def albums(
    runs: Sequence[Run], progress: Progress = lambda done, total: None
) -> tuple[list[Album], Album, list[list[str]]]:
    """The pictures of each run, what matters most first; those that need several runs; and for each
    run the kinds that couldn't be drawn, with why. Names are unique over all of them. `progress` is
    told of kinds drawn."""
    done = count(1)

    def after_each() -> None:
        progress(next(done), KINDS * len(runs) + 1)

    taken: Counter[str] = Counter()
    each, every_lost = [], []
    for number, run in enumerate(runs, start=1):
        prefix = f"run{number}-" if len(runs) > 1 else ""
        lost: list[str] = []
        found = [_renamed(one, f"{prefix}{one.name}") for one in pictures_of(run, lost, after_each)]
        each.append([_unique(one, taken) for one in found])
        every_lost.append(lost)
    across = told((("the pictures across runs", lambda: _sizes(runs)),), every_lost[-1], after_each)
    return each, [_unique(one, taken) for one in across], every_lost


def album(runs: Sequence[Run]) -> Album:
    """All of them."""
    each, across, _ = albums(runs)
    return [*(picture for found in each for picture in found), *across]


def _unique(one: Picture, taken: Counter[str]) -> Picture:
    """Labels that differ in what no file name takes would give one name twice."""
    taken[one.name] += 1
    return one if taken[one.name] == 1 else _renamed(one, f"{one.name}-{taken[one.name]}")


def _renamed(picture: Picture, name: str) -> Picture:
    """With another name also inside, where its ids begin with it."""
    svg = picture.svg
    for before in ('="', '="#', "url(#", " "):
        svg = svg.replace(f"{before}{picture.name}-", f"{before}{name}-")
    return Picture(name=name, title=picture.title, text=picture.text, svg=svg)


KINDS = 6


def pictures_of(run: Run, lost: list[str], after_each: Callable[[], None] = lambda: None) -> Album:
    """The pictures of one run: rates, stages, cold against warm, ranks, curves. Kinds that can't
    be drawn are named in `lost`; `after_each` is called KINDS times."""
    made = {phase: rows(run, phase) for phase in phases_of(run)}
    reading = made.get("disk_to_host", [])
    found = told(
        (
            ("the pictures of rates", lambda: _rates(run, made)),
            ("the pictures of stages", lambda: _stages(made)),
            ("cold against warm", lambda: _cold_warm(reading)),
            ("the ranks", lambda: _ranks(run)),
            (
                "the curves by threads",
                lambda: [one for of in made.values() for one in _threads(of)],
            ),
            ("the curves by residency", lambda: _residency(run)),
        ),
        lost,
        after_each,
    )
    return [picture for picture in found if picture is not None]


Made = Mapping[str, Sequence[Row]]
"""Rows by phase."""


def _rates(run: Run, made: Made) -> list[Picture | None]:
    found: list[Picture | None] = []
    for phase, parts in _worth(made).items():
        tops = ceilings(run) if phase == "disk_to_host" else tops_within(run, phase)
        found += [rate_picture(one, tops) for one in parts]
    return found


def _stages(made: Made) -> list[Picture | None]:
    return [stages_picture(one) for parts in _worth(made).values() for one in parts]


def _worth(made: Made) -> dict[str, list[dict[Group, list[Row]]]]:
    """What to draw of each phase: all with several ways, or everything where nothing has."""
    together = {phase: _together(members) for phase, members in made.items()}
    alone = max((_bars(one) for parts in together.values() for one in parts), default=0) < 2
    return {
        phase: [one for one in parts if alone or _bars(one) > 1]
        for phase, parts in together.items()
    }


def _together(made: Sequence[Row]) -> list[dict[Group, list[Row]]]:
    """Groups that differ in their kind of memory alone, which one picture shows."""
    found: dict[tuple[object, ...], dict[Group, list[Row]]] = {}
    for group, members in groups(made).items():
        key = (group.phase, group.storage, group.cache, group.device, group.layout)
        found.setdefault(key, {})[group] = members
    return list(found.values())


def _bars(one: Mapping[Group, Sequence[Row]]) -> int:
    """How many ways a picture would show: one bar among pictures of many says nothing."""
    return sum(not row.apart for members in one.values() for row in members)


def _cold_warm(made: Sequence[Row]) -> list[Picture | None]:
    """For each storage, the loaders that were measured in both states."""
    there = [row for row in made if not row.twin and not row.apart]
    found = []
    for label in dict.fromkeys(row.group.storage for row in there):
        pairs = []
        for row in there:
            if row.group.storage != label or row.group.cache != "cold":
                continue
            for other in there:
                same = other.group.storage == label and named(other) == named(row)
                if same and other.group.cache == "warm":
                    one, two = row.rate.median, other.rate.median
                    words = f"{one:.2f} → {two:.2f}, {two / one:.1f} x"
                    pairs.append(Pair(name=named(row), one=one, other=two, words=words))
        pairs.sort(key=lambda pair: -pair.other)
        found.append(
            pairs_picture(
                pairs,
                name=file_name("cold-warm", label or ""),
                title=f"Cold against warm: {label or 'memory'}",
                unit="GB/s",
                ends=(("cold", BLUE), ("warm: already in the page cache", ORANGE)),
            )
        )
    return found


def rank_times(sample: Sample) -> list[float]:
    """When each rank was done, in seconds from the earliest start, of `details.ranks`: a list of
    `{"rank": 0, "done": seconds}`; empty where a sample has none."""
    ranks = sample.details.get("ranks")
    if not isinstance(ranks, list):
        return []
    return [float(rank["done"]) for rank in ranks if isinstance(rank, Mapping) and "done" in rank]


def _ranks(run: Run) -> list[Picture | None]:
    """For each case of several ranks the pass in the middle, when its ranks were done."""
    by_case: dict[str, list[Sample]] = {}
    for sample in measured(run.samples):
        if len(rank_times(sample)) > 1:
            by_case.setdefault(sample.case, []).append(sample)
    pairs = []
    for samples in by_case.values():
        one = sorted(samples, key=lambda sample: max(rank_times(sample)))[len(samples) // 2]
        times = sorted(rank_times(one))
        where = f", {one.cache.requested}" if one.cache.requested != "none" else ""
        pairs.append(
            Pair(
                name=f"{title_of(one)}{where}, {len(times)} ranks",
                one=times[0],
                other=times[-1],
                words=f"{times[0]:.2f} to {times[-1]:.2f} s",
                between=times[1:-1],
            )
        )
    return [
        pairs_picture(
            sorted(pairs, key=lambda pair: pair.other),
            name="ranks",
            title="Ranks: first and last done",
            unit="seconds",
            ends=(("first rank done", BLUE), ("last rank done", ORANGE)),
        )
    ]


def _threads(made: Sequence[Row]) -> list[Picture | None]:
    """A curve for each place where a loader was measured with several numbers of threads."""
    places: dict[str, dict[str, list[Point]]] = {}
    for row in made:
        if row.threads is not None and not row.twin and not row.apart:
            lines = places.setdefault(place(row.group), {})
            at = Point(at=row.threads, rates=list(row.rates.values()))
            lines.setdefault(row.title, []).append(at)
    return [
        curve_picture(
            lines,
            name=file_name("threads", where),
            title=f"Rate by threads: {where}",
            unit="threads",
            tick=lambda value: f"{value:.0f}",
            doubling=True,
        )
        for where, lines in places.items()
    ]


def _residency(run: Run) -> list[Picture | None]:
    """Rate against the part that lay in the page cache, as it was found, where a loader was
    measured between cold and warm too."""
    by_case: dict[tuple[str, str, str], list[Sample]] = {}
    for sample in measured(run.samples):
        known = sample.cache.resident_before is not None and rate_of(sample) is not None
        if known and sample.storage and sample.phase == "disk_to_host":
            if sample.options.get("twin"):
                continue
            title = title_of(sample)
            if sample.threads is not None:
                title += f", {threads(sample.threads)}"
            key = (sample.storage.label, title, sample.cache.requested)
            by_case.setdefault(key, []).append(sample)
    places: dict[str, dict[str, list[Point]]] = {}
    for (label, title, _), samples in by_case.items():
        resident = median(100 * (sample.cache.resident_before or 0.0) for sample in samples)
        rates = [rate for sample in samples if (rate := rate_of(sample)) is not None]
        places.setdefault(label, {}).setdefault(title, []).append(Point(at=resident, rates=rates))
    return [
        curve_picture(
            {title: points for title, points in lines.items() if len(points) > 2},
            name=file_name("residency", label),
            title=f"Rate by what was cached: {label}",
            unit="% of the files in the page cache before",
            tick=lambda value: f"{value:.0f} %",
        )
        for label, lines in places.items()
    ]


def _sizes(runs: Sequence[Run]) -> Album:
    """Rate against the checkpoint's size, from runs of several sizes."""
    places: dict[str, dict[str, dict[int, list[float]]]] = {}
    for run in runs:
        for phase in phases_of(run):
            for row in rows(run, phase):
                if row.twin or row.apart or not row.nbytes:
                    continue
                sizes = places.setdefault(place(row.group), {}).setdefault(named(row), {})
                sizes.setdefault(row.nbytes, []).extend(row.rates.values())
    found = [
        curve_picture(
            {
                title: [Point(at=size, rates=rates) for size, rates in sizes.items()]
                for title, sizes in lines.items()
            },
            name=file_name("sizes", where),
            title=f"Rate by size: {where or phase_words('disk_to_host')}",
            unit="bytes of the checkpoint",
            tick=lambda value: short_size(round(value)),
            doubling=True,
        )
        for where, lines in places.items()
    ]
    return [picture for picture in found if picture is not None]
