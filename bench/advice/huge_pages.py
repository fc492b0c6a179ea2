"""Huge pages for memory that weights are read into."""

from __future__ import annotations

from statistics import median

from bench.advice.contract import Advice, Seen, saving, seconds
from bench.record.records import measured
from bench.record.summary import ByPass, rate_of

ALLOW = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
USE = "THP_MEM_ALLOC_ENABLE=1 in the engine's environment (PyTorch's allocator then asks for them)"


def find(seen: Seen) -> Advice | None:
    """Reading into fresh memory was measured with both kinds of pages, cold, and huge ones were
    faster. The ceilings show the most that any loader could gain."""
    pages = (seen.host.get("memory") or {}).get("transparent_huge_pages") or {}
    for label in seen.labels:
        ways = seen.ways(label)
        small, huge = _rates(seen, label, "4k"), _rates(seen, label, "huge")
        if not small or not huge or not ways:
            continue
        nbytes = ways[0].nbytes
        saved = saving(seconds(small, nbytes), seconds(huge, nbytes), at_most=True)
        if saved is None:
            continue
        state = pages.get("enabled")
        return Advice(
            name="huge-pages",
            title="Take the memory for weights in huge pages",
            seen=f"Cold on {label}, read into fresh memory: {median(huge.values()):.2f} GB/s with "
            f"huge pages, {median(small.values()):.2f} GB/s with 4 KiB pages; transparent huge "
            f"pages here: {state or 'unknown'}.",
            do=(*([ALLOW] if state == "never" else []), USE),
            cost="for ways that read into memory of their own; memory is taken in steps of 2 MiB, "
            "and a fragmented host may stall while it makes room",
            saving=saved,
        )
    return None


def _rates(seen: Seen, label: str, pages: str) -> ByPass:
    return {
        sample.pass_number: rate
        for sample in measured(seen.run.settled())
        if sample.phase == "ceiling"
        and sample.loader == "owned-read"
        and sample.options.get("pages") == pages
        and sample.cache.requested == "cold"
        and sample.cache.state != "mixed"
        and sample.storage is not None
        and sample.storage.label == label
        and (rate := rate_of(sample)) is not None
    }
