"""The sentences under the table: what limits this host, who wins by how much, what to look at.

Pure functions from a run's records to text. Each is said only with its figures, and a warning ends
with the next thing to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

from bench.record.records import Run, Sample, measured
from bench.record.stats import BOOTSTRAP_FROM
from bench.record.summary import (
    ByPass,
    Group,
    Row,
    ceilings,
    groups,
    noise,
    rate_of,
    ratio,
    title_of,
)
from bench.sizes import format_size
from bench.words.autoprefetch import autoprefetch
from bench.words.between import SMALL as SMALL
from bench.words.between import storages_compared
from bench.words.for_engine import for_the_engine
from bench.words.halfwarm import device_bytes, fetched_too_much
from bench.words.limits_seen import ABOVE
from bench.words.parts import told
from bench.words.phrases import against, threads, where
from bench.words.remote_limits import explain, fetched
from bench.words.snapshot_pays import snapshot_pays
from bench.words.staged import staging_pays
from bench.words.w8a8_words import views, w8a8_findings

BLIND = 0.5
"""Part of the payload fetched from the device, warm, from which a loader counts as blind."""

STOCK_THREADS = "safetensors-threads"


def findings(run: Run, made: Sequence[Row], lost: list[str]) -> list[str]:
    """What the run found, the host's limits first. `made` are its rows of reading; parts that
    can't be told are named in `lost`."""
    return told(
        (
            ("the host's limits", lambda: host_limits(run, ceilings(run))),
            ("who wins", lambda: winners(made)),
            ("the engine's settings", lambda: for_the_engine(made)),
            ("what the engine prefetches", lambda: its_own_prefetch(run)),
            ("what a progress bar counts", lambda: the_bar_counts_views(made)),
            ("who is blind to the page cache", lambda: blind_to_the_cache(made)),
            ("what half-warm files gave", lambda: device_bytes(made)),
            ("whether staging pays", lambda: staging_pays(run, made)),
            ("whether a snapshot pays", lambda: snapshot_pays(run, made)),
            ("what quantising beforehand saves", lambda: w8a8_findings(run)),
            ("what a transposed view costs", lambda: views(run)),
            ("storages compared", lambda: storages_compared(made)),
            ("what stores gave", lambda: from_stores(run)),
            ("the noise", lambda: noise_of_the_run(made)),
            ("the cost of measuring", lambda: cost_of_measuring(run)),
        ),
        lost,
    )


def warnings(run: Run, made: Sequence[Row], lost: list[str]) -> list[str]:
    """What makes a figure doubtful or is missing, each with what to do."""
    plan, settled = run.plan or {}, run.settled()
    return told(
        (
            ("the run's own notes", lambda: plan.get("notes", ())),
            ("contradictions", lambda: contradictions(made)),
            ("bytes fetched beyond need", lambda: fetched_too_much(made)),
            ("cache states", lambda: not_as_asked(made)),
            ("samples taken again", lambda: discarded(run)),
            ("failures", lambda: failures(settled)),
            ("what was skipped", lambda: skips(settled)),
            ("the loaders' notes", lambda: notes_of(made)),
            ("the number of passes", lambda: few_passes(run)),
            ("the size", lambda: small(run)),
            ("the threads", lambda: many_threads(run, made)),
        ),
        lost,
    )


def host_limits(run: Run, tops: Mapping[Group, ByPass]) -> list[str]:
    """One sentence a storage: its direct rate beside what reading into fresh memory gives, and the
    rates of this memory."""
    said = []
    touch = _middle(tops, Group(storage=None, cache="none", ownership="owned"))
    labels = sorted({group.storage for group in tops if group.storage is not None})
    for label in labels:
        ring = _middle(tops, Group(storage=label, cache="cold", ownership="borrowed"))
        fresh = _middle(tops, Group(storage=label, cache="cold", ownership="owned"))
        cached = _middle(tops, Group(storage=label, cache="warm", ownership="borrowed"))
        parts = []
        if ring is not None:
            parts.append(f"{ring:.2f} GB/s from the device into a reused ring")
        if fresh is not None:
            parts.append(f"{fresh:.2f} GB/s into fresh memory")
        if cached is not None:
            parts.append(f"{cached:.2f} GB/s out of the page cache into a ring")
        sentence = f"{label} gives at most {', '.join(parts)}."
        if ring is not None and fresh is not None and not small(run):
            sentence += " " + _cold_limit(ring, fresh)
        said.append(sentence)
    said += _memory_sentence(run, touch)
    return said


def _cold_limit(ring: float, fresh: float) -> str:
    """Which of the two bounds a cold load into memory of its own: the device, or getting the
    memory, which is what reading into fresh memory takes longer than reading into a ring."""
    share = 1 - fresh / ring
    if share <= 0.05:
        return "Cold, the storage is the limit, whatever memory is read into."
    return (
        f"So of a cold load into memory of its own, getting that memory is {100 * share:.0f} % at "
        f"the least; the rest is the storage."
    )


def _memory_sentence(run: Run, touch: float | None) -> list[str]:
    copies: dict[int, list[float]] = {}
    for sample in run.samples:
        rate = rate_of(sample) if sample.status == "ok" else None
        if sample.loader == "memory-copy" and rate is not None:
            copies.setdefault(int(sample.options["copiers"]), []).append(rate)
    parts = [
        f"{median(rates):.1f} GB/s copied by {count} thread{'s' if count > 1 else ''}"
        for count, rates in sorted(copies.items())
    ]
    if touch is not None:
        parts.append(f"{touch:.2f} GB/s at first touch, with the better kind of page")
    return [f"This memory: {', '.join(parts)}."] if parts else []


def _middle(tops: Mapping[Group, ByPass], group: Group) -> float | None:
    by_pass = tops.get(group)
    return median(by_pass.values()) if by_pass else None


def winners(made: Sequence[Row]) -> list[str]:
    """For each storage, cache state and kind of memory with more than one loader: the best, and by
    how much it beats the next."""
    said = []
    for group, members in groups([row for row in made if not row.twin]).items():
        loaders = [row for row in members if not row.apart and row.state != "unverified"]
        if len(loaders) < 2:
            continue
        if loaders[0].nbytes < SMALL:
            continue
        best, second = loaders[0], loaders[1]
        pair = ratio(best, second)
        place = f"{where(group)}, {group.ownership}"
        one, other = (
            f"{row.title}{threads(row.threads)}" if best.title == second.title else row.title
            for row in (best, second)
        )
        said.append(f"{place}: {one} {against(pair)} {other}.")
    return said


def its_own_prefetch(run: Run) -> list[str]:
    """What the engine would decide by itself for the files of this run, for each folder."""
    host = (run.host or {}).get("host", {})
    usable = (host.get("memory") or {}).get("usable_bytes")
    size = (run.plan or {}).get("size")
    if usable is None or not size:
        return []
    return [
        f"{label}: {autoprefetch(facts['fs_type'], int(size), int(usable))}"
        for label, facts in (host.get("storage") or {}).items()
        if facts.get("fs_type")
    ]


def the_bar_counts_views(made: Sequence[Row]) -> list[str]:
    """What engines' multi-thread bar means: the time until the views are there is not the time to
    read the bytes."""
    said = []
    for row in made:
        if row.loader != STOCK_THREADS or row.group.cache != "cold" or row.twin:
            continue
        opened, total = row.seconds.get("open", 0.0), row.seconds["total"]
        said.append(
            f"{row.loader}, cold on {row.group.storage}: opened in {opened:.3f} s of {total:.2f} s."
            f" Its threads make views; the bytes come when they are touched. A progress bar over "
            f"shards shows the first figure."
        )
    return said


def blind_to_the_cache(made: Sequence[Row]) -> list[str]:
    """Loaders that fetch from the device what lies in memory."""
    blind = [
        row.title
        for row in made
        if row.group.cache == row.state == "warm" and (row.fetched or 0) > BLIND * row.nbytes
    ]
    if not blind:
        return []
    return [
        f"Blind to the page cache: {', '.join(Counter(blind))} read the device although all of it "
        f"was in memory; so they gain nothing from a warm start."
    ]


def noise_of_the_run(made: Sequence[Row]) -> list[str]:
    """What one way under two names differed by: the least that a difference must exceed."""
    return [
        f"Noise: {row.title} twice under two names, {where(row.group)}: "
        f"{pair.median:.2f} x ({pair.low:.2f} to {pair.high:.2f}, {pair.kind} of {pair.n})."
        for row, pair in noise(made)
    ]


def from_stores(run: Run) -> list[str]:
    """Of each loader that counted its requests: how it asked, and what its rate is limited by."""
    by_case: dict[str, list[Sample]] = {}
    for sample in measured(run.samples):
        asked = sample.details.get("settings", {}), sample.details.get("counts", {})
        if "chunk_mib" in asked[0] and "requests" in asked[1] and not sample.options.get("twin"):
            by_case.setdefault(sample.case, []).append(sample)
    said = []
    for samples in by_case.values():
        one = sorted(samples, key=lambda sample: rate_of(sample) or 0.0)[len(samples) // 2]
        details = one.details
        sentence = explain(
            fetched(
                details["counts"],
                seconds=one.seconds.total or 0.0,
                chunk_bytes=int(details["settings"]["chunk_mib"]) << 20,
                concurrency=one.threads or 1,
                files=details["files"],
            )
        )
        retries = sum(sample.details["counts"].get("retries", 0) for sample in samples)
        label = one.storage.label if one.storage else "memory"
        said.append(
            f"{title_of(one)} on {label}: {sentence}. Retries in {len(samples)} "
            f"pass{'es' * (len(samples) > 1)}: {retries:,}."
        )
    return said


def cost_of_measuring(run: Run) -> list[str]:
    """What an empty load costs, through the whole harness."""
    empty = [sample for sample in measured(run.samples) if sample.loader == "nothing"]
    inside = [sample.runner_seconds for sample in empty if sample.runner_seconds is not None]
    whole = [sample.wall_seconds for sample in empty if sample.wall_seconds is not None]
    if not inside or not whole:
        return []
    return [
        f"Measuring itself: {1000 * median(inside):.2f} ms of the timed region (an empty load, "
        f"from go to done); {1000 * median(whole):.0f} ms around a sample, not timed."
    ]


def contradictions(made: Sequence[Row]) -> list[str]:
    """Rows above their ceiling, which can't be."""
    return [
        f"{row.title}, {row.group.cache} on {row.group.storage}: {row.percent.median:.0f} % of its "
        f"ceiling. {_above(row)}"
        for row in made
        if row.percent is not None and row.percent.median > ABOVE and not row.apart
    ]


def _above(row: Row) -> str:
    if row.group.cache == "cold":
        return (
            "Either bytes came from a cache that was taken for cold, or the ceiling isn't one: run "
            "it again with --passes=8, and with --drop-caches as root."
        )
    return "The ceiling isn't one in this run: run it again with --passes=8."


def not_as_asked(made: Sequence[Row]) -> list[str]:
    """Rows whose cache state wasn't the asked one: they stand apart, and what to look at."""
    hints = {
        "cold": "Is something else reading the files? Try --drop-caches as root.",
        "warm": "Does memory hold the checkpoint? coldload host shows the limits.",
    }
    apart: dict[tuple[str, str], list[str]] = {}
    for row in made:
        if row.apart or (row.state == "unverified" and row.group.cache != "none"):
            apart.setdefault((row.group.cache, row.state), []).append(row.title)
    unknown = "It could not be verified here."
    return [
        f"asked {asked}, was {state}: {', '.join(Counter(titles))}; such rows stand apart. "
        f"{unknown if state == 'unverified' else hints.get(asked, hints['cold'])}"
        for (asked, state), titles in apart.items()
    ]


def discarded(run: Run) -> list[str]:
    """Samples that were thrown out and taken again."""
    count = len(run.samples) - len(run.settled())
    if not count:
        return []
    return [
        f"{count} sample(s) were taken again because the child's clock and the runner's disagreed: "
        f"another process, or a slow wake-up of a virtual core, came between; both are in the "
        f"records."
    ]


def failures(samples: Sequence[Sample]) -> list[str]:
    """Each failed sample with its reason."""
    return [
        f"FAILED {title_of(sample)}{threads(sample.threads)}, {sample.cache.requested}, pass "
        f"{sample.pass_number}: "
        f"{sample.reason}"
        for sample in samples
        if sample.status == "failed"
    ]


def skips(samples: Sequence[Sample]) -> list[str]:
    """Skipped loaders by reason, each once."""
    reasons: dict[str, list[str]] = {}
    for sample in samples:
        if sample.status == "skipped":
            reasons.setdefault(sample.reason or "", []).append(title_of(sample))
    return [
        f"skipped: {', '.join(Counter(titles))}: {reason}" for reason, titles in reasons.items()
    ]


def notes_of(made: Sequence[Row]) -> list[str]:
    """What loaders noted on the way, each once."""
    noted: dict[str, list[str]] = {}
    for row in made:
        for note in row.notes:
            noted.setdefault(note, []).append(row.title)
    return [f"{', '.join(Counter(titles))}: {note}" for note, titles in noted.items()]


def small(run: Run) -> list[str]:
    """A checkpoint of less than SMALL bytes, on which mostly starting up is timed."""
    size = int((run.plan or {}).get("size") or 0)
    if size >= SMALL or not size or (run.plan or {}).get("smoke"):
        return []
    return [
        f"{format_size(size)} is too small to say anything of storage or memory: what was timed is "
        f"mostly starting up."
    ]


def many_threads(run: Run, made: Sequence[Row]) -> list[str]:
    """More threads than this process may use: where a sweep asked for them."""
    cores = int((run.host or {}).get("cores", 0))
    most = max((row.threads or 0 for row in made if row.group.cache != "none"), default=0)
    if not cores or most <= cores:
        return []
    return [f"up to {most} threads were asked for; this process may use {cores} core(s)."]


def few_passes(run: Run) -> list[str]:
    """Fewer passes than an interval takes."""
    passes = int((run.plan or {}).get("passes", 0))
    if passes >= BOOTSTRAP_FROM or (run.plan or {}).get("smoke"):
        return []
    return [
        f"{passes} pass{'es' if passes > 1 else ''}: a range, not an interval; "
        f"--passes={BOOTSTRAP_FROM} gives one (with a larger --budget)."
    ]
