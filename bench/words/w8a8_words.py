"""The verdict on quantising offline, in sentences and as a document. Pure; reads records only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from bench.record.records import Run, measured
from bench.sizes import format_size
from bench.words.w8a8_projection import Projected, Projection
from bench.words.w8a8_verdict import Alone, Place, Verdict, WayTimes, alone, verdicts

GB = 1e9
USUAL = 0.85
"""Part of a large model's bytes that is quantised, at least."""

NO_ENGINE = (
    "No engine goes the online way for int8 (vLLM 0.33 quantises fp8 while loading, and int8 for "
    "the experts' weights alone; vllm-ascend refuses bf16 with --quantization ascend), so who "
    "starts a w8a8 model has quantised it offline already, and the offline seconds are what is "
    "left to save."
)


def w8a8_findings(run: Run) -> list[str]:
    """What the run found about w8a8: the verdict in one sentence, cold and warm, and five more at
    most; empty where nothing of it was measured, or in smoke mode, whose figures mean nothing."""
    if (run.plan or {}).get("smoke"):
        return []
    found = sorted(verdicts(run), key=lambda one: one.place.cache != "cold")
    equal = [one for one in found if one.equal]
    said = [*_no_verdict(found), *([verdict(equal)] if equal else [])]
    if said:
        more = [*_reasons(equal[0]), _bound("offline", equal[0].offline)] if equal else []
        return [" ".join(said), *more, NO_ENGINE, *compiled(run)]
    said = [f"w8a8, {_where(one.place)}: {_bound('offline', one.offline)}" for one in alone(run)]
    return [*said[:4], NO_ENGINE] if said else []


def verdict(found: Sequence[Verdict]) -> str:
    """What offline saves in each place, in one sentence."""
    said = [f"{_saving(one)} {_where(one.place)}" for one in found]
    return f"w8a8: {'; '.join(said)}."


def _no_verdict(found: Sequence[Verdict]) -> list[str]:
    where = [_where(one.place) for one in found if not one.equal]
    if not where:
        return []
    return [
        f"w8a8: NO VERDICT {'; '.join(where)}: the two ways didn't come to the same weights "
        "(details.state_digest in the records), so one of them is wrong."
    ]


def sentences(one: Verdict) -> list[str]:
    """The saving, where it comes from, where it would end, and what is left, of one place."""
    if not one.equal:
        return _no_verdict([one])
    bounds = [_bound("online", one.online), _bound("offline", one.offline)]
    return [verdict([one]), *_reasons(one), *bounds]


def _reasons(one: Verdict) -> list[str]:
    said = []
    if one.why is not None:
        why = one.why
        said.append(
            f"Why ({one.place.cache}): {why.bytes_not_read / GB:.3f} GB less to read at "
            f"{why.read_rate / GB:.2f} GB/s, {why.read:.2f} s, and no quantising, "
            f"{why.quantise:.2f} s; the rest, {why.rest:+.2f} s, is slicing and memory for half "
            f"the bytes, and what the rates differed."
        )
    return [*said, _break_even(one)]


def _where(place: Place) -> str:
    device = "host memory" if place.device == "cpu" else place.device
    return f"{place.cache} on {place.storage} (one rank of {place.ranks}, {place.into} in {device})"


def _saving(one: Verdict) -> str:
    saving = one.saving
    between = (
        f"{saving.low:.2f} to {saving.high:.2f}, {saving.kind} of {saving.n}"
        if saving.n > 1
        else "one pass, no spread known"
    )
    ways = f"quantised while loading {one.online.total:.2f} s, offline {one.offline.total:.2f} s"
    if saving.n > 1 and not one.shown:
        return f"{ways}, no difference shown ({saving.median:+.2f} s, {between}),"
    verb = "saves" if saving.median > 0 else "costs"
    share = 100 * abs(saving.median) / saving.of
    return (
        f"quantising offline {verb} {abs(saving.median):.2f} s of {saving.of:.2f} s ({between}), "
        f"{share:.0f} %,"
    )


def _break_even(one: Verdict) -> str:
    if one.break_even is not None:
        return (
            f"They would be equal on a storage that reads {one.break_even / GB:.2f} GB/s; on a "
            f"quicker one, quantising while loading is quicker."
        )
    if one.even_reasons is None:
        return "There is no rate of the storage at which they would be equal."
    return (
        f"There is no rate of the storage at which they would be equal: besides reading, offline "
        f"saves {one.besides:.2f} s at any; below {one.even_reasons / GB:.2f} GB/s most of the "
        f"saving is bytes not read, above it work not done."
    )


def _bound(name: str, way: WayTimes) -> str:
    """Each stage's share, which is the most that any remedy for it could save."""
    parts = sorted(way.stages.items(), key=lambda part: -part[1])
    shown = [f"{stage} {100 * way.share(stage):.0f} %" for stage, _ in parts]
    stage, seconds = parts[0]
    return (
        f"{name[0].upper()}{name[1:]}, {way.total:.2f} s: {', '.join(shown)}; no remedy for one "
        f"stage saves more than its share: of {stage} {seconds:.2f} s at most, of all others "
        f"together {way.total - seconds:.2f} s."
    )


def views(run: Run) -> list[str]:
    """The layout that has no rate because nothing is moved; empty in smoke mode."""
    if (run.plan or {}).get("smoke"):
        return []
    found = [
        sample
        for sample in measured(run.settled())
        if sample.phase == "layout" and sample.loader == "view" and sample.seconds.total
    ]
    if not found:
        return []
    seconds = median(sample.seconds.total or 0.0 for sample in found)
    tensors = found[0].details.get("tensors", 0)
    return [
        f"The transposed view that CUDA's kernels take moves nothing: {1e6 * seconds:.0f} "
        f"microseconds for {tensors} weights."
    ]


def compiled(run: Run) -> list[str]:
    """What compiling the quantiser took, which is in no rate."""
    spent = [
        float(sample.details["compile_seconds"])
        for sample in measured(run.settled())
        if sample.phase in {"quantise", "w8a8"} and sample.details.get("compile_seconds")
    ]
    if not spent:
        return []
    return [
        f"Compiling a quantiser took {max(spent):.1f} s at most, {min(spent):.1f} s at least (from "
        f"the compiler's cache); an engine pays it once a process, and it is in none of the rates."
    ]


def projected_sentences(one: Projection) -> list[str]:
    """The same for the other checkpoint."""
    saved = one.online.alone - one.offline.alone
    both = one.online.together - one.offline.together
    where = _where(one.verdict.place)
    ranks = f"{one.tp} rank{'s' if one.tp > 1 else ''}"
    return [
        f"Projected from {where}: {format_size(one.source)} unquantised, "
        f"{format_size(one.quantised)} quantised, for tp {one.tp}, at the rates measured here.",
        f"One rank alone on its host: online {one.online.alone:.1f} s, offline "
        f"{one.offline.alone:.1f} s: {saved:.1f} s saved.",
        f"All {ranks} on one host, each reading for itself: online {one.online.together:.1f} s, "
        f"offline {one.offline.together:.1f} s: {both:.1f} s saved.",
        _most(one.offline),
        *_composition(one),
    ]


def _composition(one: Projection) -> list[str]:
    """A small made-up checkpoint is embeddings to a large part, which nobody quantises."""
    if one.share >= USUAL:
        return []
    return [
        f"Of the bytes measured {100 * one.share:.0f} % were quantised; of a whole model it is "
        f"more, and so is the saving: measure with a larger --size, or the model itself."
    ]


def _most(way: Projected) -> str:
    stage, seconds = max(way.stages.items(), key=lambda part: part[1])
    share = 100 * seconds / way.alone
    return f"Of the offline seconds {share:.0f} % are {stage}: no remedy for it saves more."


def document(run: Run, projected: Sequence[Projection]) -> dict[str, Any]:
    """JSON-able; see bench.commands.w8a8."""
    return {
        "run": str(run.path),
        "verdicts": [_document(one) for one in verdicts(run)],
        "offline_alone": [_alone(one) for one in alone(run)],
        "engines": NO_ENGINE,
        "projections": [_projection(one) for one in projected],
    }


def _document(one: Verdict) -> dict[str, Any]:
    saving = asdict(one.saving)
    return {
        **asdict(one.place),
        "equal": one.equal,
        "saving": {"passes": saving.pop("n"), "bounds": saving.pop("kind"), **saving},
        "shown": one.shown,
        "why": None if one.why is None else asdict(one.why),
        "break_even": one.break_even,
        "even_reasons": one.even_reasons,
        "besides_reading": one.besides,
        "online": _way(one.online),
        "offline": _way(one.offline),
        "sentences": sentences(one),
    }


def _alone(one: Alone) -> dict[str, Any]:
    return {**asdict(one.place), "offline": _way(one.offline)}


def _way(way: WayTimes) -> dict[str, Any]:
    return {
        "seconds": way.total,
        "passes": way.n,
        "fetched_bytes": way.fetched,
        "checkpoint_bytes": way.checkpoint,
        "stages": {
            name: {"seconds": value, "share": way.share(name)} for name, value in way.stages.items()
        },
    }


def _projection(one: Projection) -> dict[str, Any]:
    return {
        **asdict(one.verdict.place),
        "source_bytes": one.source,
        "quantised_bytes": one.quantised,
        "tp": one.tp,
        "quantised_share": one.share,
        "online": asdict(one.online),
        "offline": asdict(one.offline),
        "saves_alone": one.online.alone - one.offline.alone,
        "saves_together": one.online.together - one.offline.together,
        "sentences": projected_sentences(one),
    }
