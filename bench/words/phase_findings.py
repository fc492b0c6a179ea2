"""Sentences on the phases after reading: copies to a device, slicing, assembling. Pure; reads
records only. A simulated device is called so wherever it is named (bench.record.summary.group_of).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from bench.record.records import Run, Sample, measured
from bench.record.stats import Ratio, paired_ratio, spread
from bench.record.summary import ByPass, Group, Row, group_of, groups, ratio, rows
from bench.words.assembly_seen import assembled
from bench.words.parts import told
from bench.words.phrases import bounds, where
from loaders.pipeline.stages import OVERLAP_GOAL, hidden, sequential, slowest

RING, WHOLE, MAPPED, PAGEABLE = "pinned-ring", "whole", "mapped", "pageable"
ALONE = "-alone"
OVERLAPPED = "overlapped"
CUTS = ("column", "row")
"""The rules whose fetched bytes differ: rows of a matrix lie together in a file, columns don't."""


def phase_findings(run: Run, lost: list[str]) -> list[str]:
    """What the run found beyond reading; empty where it measured nothing of it, or in smoke mode,
    whose figures mean nothing. Parts that can't be told are named in `lost`."""
    if (run.plan or {}).get("smoke"):
        return []
    return told(
        (
            ("copies to the device", lambda: copies_to_device(run)),
            ("slicing", lambda: slices(run)),
            ("what overlaps", lambda: overlap(run)),
            ("assembling", lambda: assembled(run)),
        ),
        lost,
    )


def copies_to_device(run: Run) -> list[str]:
    """For each device: the best way against one copy of everything, the pinned ring's share of it,
    what pinning cost, and what a cold mapping gives."""
    made = [row for row in rows(run, "host_to_device") if not row.group.subject]
    said = []
    for group, members in groups(made).items():
        ways = {row.loader: row for row in members}
        place = _device(group)
        if group.storage is not None:
            said += _mapped(place, ways.get(MAPPED), made)
            continue
        whole = ways.pop(WHOLE, None)
        if whole is not None and ways:
            best = max(ways.values(), key=lambda row: row.rate.median)
            said.append(
                f"{place}: {best.title} is the best way for separate tensors, {_share(best, whole)}"
                f" of one copy of everything, which moves {whole.rate.median:.2f} GB/s."
            )
            ring = ways.get(RING)
            if ring is not None and ring is not best:
                said.append(f"{place}: {ring.title} reaches {_share(ring, whole)} of that copy.")
        if group.device != "cpu":  # where nothing is pinned
            said += _pinning(run, place, group)
    return said


def _device(group: Group) -> str:
    if group.device == "cpu":
        return "Memory copy (no accelerator)"
    return f"To {group.device}"


def _share(row: Row, top: Row) -> str:
    """`95 % (0.93 to 0.97 of it, range of 3)`."""
    pair = ratio(row, top)
    if pair is None:
        return f"{100 * row.rate.median / top.rate.median:.0f} % (no pass in common)"
    return f"{100 * pair.median:.0f} % ({_spread(pair)})"


def _spread(pair: Ratio) -> str:
    return bounds(pair) if pair.n > 1 else "one pass, no spread known"


def _beside(pair: Ratio, other: str) -> str:
    if pair.n > 1 and not pair.shown:
        return f"not shown to differ from {other} ({pair.median:.2f} x, {bounds(pair)})"
    return f"{pair.median:.2f} x ({_spread(pair)}) as fast as {other}"


def _mapped(place: str, mapped: Row | None, made: Sequence[Row]) -> list[str]:
    """What the engines' usual way loses: it faults its pages in from the disk within the copy."""
    if mapped is None:
        return []
    for row in made:
        if row.loader == PAGEABLE and row.group.device == mapped.group.device:
            return [
                f"{place}: from a mapping, {where(mapped.group)}, as engines copy, "
                f"{mapped.rate.median:.2f} GB/s; the same tensors resident, {row.rate.median:.2f}: "
                f"the disk and the page faults are within that copy."
            ]
    return []


def _pinning(run: Run, place: str, group: Group) -> list[str]:
    """Getting pinned memory against the copy that it is for, for each way that pins."""
    costs: dict[str, list[tuple[float, float]]] = {}
    for sample in measured(run.settled()):
        pin = (sample.details.get("seconds") or {}).get("pin")
        if sample.phase == group.phase and group_of(sample) == group and pin and _took(sample):
            costs.setdefault(sample.loader, []).append((float(pin), _took(sample)))
    parts = []
    for way, pairs in costs.items():
        pin, copy = (median(part) for part in zip(*pairs, strict=True))
        parts.append(f"{way} {pin:.3f} s, {pin / copy:.1f} x its copy")
    return [f"{place}: pinning comes on top: {'; '.join(parts)}."] if parts else []


def _took(sample: Sample) -> float:
    return sample.seconds.total or 0.0


def slices(run: Run) -> list[str]:
    """In memory, ours against the engines' way and a bare copy, rule by rule; from files, reading
    slices against reading everything, and how much more than is kept has to be fetched."""
    said = []
    for group, members in groups(rows(run, "slice")).items():
        ways = {row.loader: row for row in members if not row.apart}
        if group.storage is None:
            said += _in_memory(group, ways)
        else:
            said += _from_files(group, ways)
            said += _fetched(run, group)
    return said


def _in_memory(group: Group, ways: Mapping[str, Row]) -> list[str]:
    ours, stock, copy = ways.get("ours"), ways.get("stock"), ways.get("copy")
    if ours is None:
        return []
    parts = []
    if stock is not None and (pair := ratio(ours, stock)) is not None:
        parts.append(_beside(pair, "narrow and copy_"))
    if copy is not None:
        parts.append(f"{_share(ours, copy)} of a bare copy")
    if not parts:
        return []
    return [f"Slicing for {group.layout}, {group.subject} cuts: ours is {' and '.join(parts)}."]


def _from_files(group: Group, ways: Mapping[str, Row]) -> list[str]:
    slim = ways.get("read-slices")
    parts = []
    for name, words in (("read-all", "reading everything"), ("stock", "copying from a mapping")):
        other = ways.get(name)
        if slim is not None and other is not None and (pair := ratio(slim, other)) is not None:
            parts.append(_beside(pair, words))
    if not parts:
        return []
    return [
        f"One rank of {group.layout}, {where(group)}: reading only its slices is "
        f"{' and '.join(parts)}."
    ]


def _fetched(run: Run, group: Group) -> list[str]:
    """Bytes fetched for each byte kept, by rule: the same in every pass, they are planned."""
    for sample in measured(run.settled()):
        by_rule: Mapping[str, Any] = sample.details.get("by_rule") or {}
        if sample.phase != "slice" or group_of(sample) != group or not by_rule:
            continue
        parts = [
            f"{by_rule[rule]['fetched_bytes'] / by_rule[rule]['kept_bytes']:.2f} for {rule} cuts"
            for rule in CUTS
            if (by_rule.get(rule) or {}).get("kept_bytes")
        ]
        if parts:
            return [
                f"Bytes fetched for each byte that a rank of {group.layout} keeps: "
                f"{', '.join(parts)}."
            ]
    return []


def overlap(run: Run) -> list[str]:
    """For each storage and device: the overlapped whole against its slowest stage alone, pass by
    pass, what one stage after another would take, and the part of that which was hidden."""
    places: dict[tuple[str, str], dict[str, ByPass]] = {}
    for sample in measured(run.settled()):
        if sample.phase != "assemble" or not sample.seconds.total:
            continue
        group = group_of(sample)
        options = ", ".join(f"{key}={value}" for key, value in sorted(sample.options.items()))
        way = places.setdefault((_where_to(group), options), {}).setdefault(sample.loader, {})
        way[sample.pass_number] = sample.seconds.total
    return [
        sentence
        for (place, _), ways in places.items()
        if (sentence := _overlapped(place, ways)) is not None
    ]


def _where_to(group: Group) -> str:
    target = "host memory (a memory copy)" if group.device == "cpu" else group.device
    return f"{where(group)}, to {target}"


def _overlapped(place: str, ways: Mapping[str, ByPass]) -> str | None:
    whole = ways.get(OVERLAPPED, {})
    alone = {name.removesuffix(ALONE): of for name, of in ways.items() if name.endswith(ALONE)}
    passes = [number for number in whole if all(number in of for of in alone.values())]
    if len(alone) < 2 or not passes:
        return None
    stages = {number: {name: of[number] for name, of in alone.items()} for number in passes}
    bound = {number: slowest(stages[number])[1] for number in passes}
    pair = paired_ratio(whole, bound)
    if pair is None:
        return None
    name, seconds = slowest({name: median(of[n] for n in passes) for name, of in alone.items()})
    shares = [hidden(whole[number], stages[number]) for number in passes]
    share = spread([100 * one for one in shares if one is not None])
    more = "" if share is None else f"; {_hidden(share.median)} of what could be hidden was"
    verdict = "" if pair.median <= OVERLAP_GOAL else f", more than the {OVERLAP_GOAL} aimed at"
    in_turn = median(sequential(stages[number]) for number in passes)
    return (
        f"Assembling {place}: overlapped it takes {pair.median:.2f} x ({_spread(pair)}) as long as "
        f"its slowest stage alone ({name}, {seconds:.2f} s){verdict}; one after another would be "
        f"{in_turn:.2f} s{more}."
    )


def _hidden(percent: float) -> str:
    """Reading and copying at once can be quicker than the slower of them alone was."""
    return "all" if percent >= 99.5 else f"{percent:.0f} %"
