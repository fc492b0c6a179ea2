"""Another number of threads than the engine's default, for a way that takes one."""

from __future__ import annotations

from bench.advice.contract import Advice, Seen, between, engine_options, rate_words
from bench.record.summary import Row
from bench.words.engine_settings import flags_for
from bench.words.names import threads

DEFAULT = 8
"""vLLM's own: num_threads and safetensors_prefetch_num_threads (config/load.py, 0.33)."""


def find(seen: Seen) -> Advice | None:
    """Of the ways measured with several numbers of threads, the one where leaving the number
    nearest to the engine's default saves most."""
    found = []
    for label in seen.labels:
        swept: dict[tuple[str, str], list[Row]] = {}
        for row in seen.ways(label):
            if row.threads is not None:
                swept.setdefault((row.title, row.group.ownership), []).append(row)
        found += [advice for ways in swept.values() if (advice := _of(seen, label, ways))]
    return max(found, key=lambda one: one.saving.seconds if one.saving else 0.0, default=None)


def _of(seen: Seen, label: str, ways: list[Row]) -> Advice | None:
    best = ways[0]
    usual = min(ways, key=lambda row: abs((row.threads or 0) - DEFAULT))
    setting = flags_for(best.loader, engine_options(best), best.threads or 1, seen.engine)
    saved = between(usual, best) if best.threads != usual.threads else None
    if setting is None or saved is None:
        return None
    curve = ", ".join(
        f"{row.threads}: {rate_words(row)}" for row in sorted(ways, key=lambda r: r.threads or 0)
    )
    cores = (seen.run.host or {}).get("cores")
    return Advice(
        name="threads",
        title=f"{best.title}: {threads(best.threads or 1)}, not {usual.threads}",
        seen=f"Cold on {label}, by threads: {curve}. This process may use {cores} cores.",
        do=(setting.flags,),
        cost="threads that read take cores from what else starts up at the same time",
        saving=saved,
    )
