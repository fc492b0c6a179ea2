"""Another load format or strategy than the engine's usual one."""

from __future__ import annotations

from bench.advice.contract import Advice, Seen, between, engine_options, first, rate_words
from bench.record.summary import Row
from bench.sizes import format_size
from bench.words.autoprefetch import NETWORK
from bench.words.engine_settings import flags_for
from bench.words.names import named

USUAL, USUAL_ON_A_NETWORK = "safetensors-mmap", "safetensors-prefetch"

CONVERTED = {
    "pt": "the weights as *.pt or *.bin files",
    "pt-threads": "the weights as *.pt or *.bin files",
    "npcache": "the weights as *.pt or *.bin files, and as much again on the disk",
    "tensorizer": "the weights serialised anew",
}


def find(seen: Seen) -> Advice | None:
    """The fastest cold way that the engine has, where it beats what the engine does by itself; of
    several storages the one where most is saved."""
    found = [advice for label in seen.labels if (advice := _on(seen, label)) is not None]
    return max(found, key=lambda one: one.saving.seconds if one.saving else 0.0, default=None)


def _on(seen: Seen, label: str) -> Advice | None:
    ways = seen.ways(label)
    usual = usual_way(seen, label)
    if usual is None:
        return None
    for best in ways:
        setting = flags_for(best.loader, engine_options(best), best.threads or 1, seen.engine)
        if setting is None:
            continue
        saved = between(usual, best)
        if saved is None:
            return None  # the fastest that there is isn't shown to be faster
        return Advice(
            name="loader",
            title=f"Load with {named(best)} instead of {usual.title}",
            seen=f"Cold on {label}: {named(best)} {rate_words(best)}, {usual.title} "
            f"{rate_words(usual)}.",
            do=(setting.flags,),
            cost=_cost(best, setting.caveat),
            saving=saved,
        )
    return None


def usual_way(seen: Seen, label: str) -> Row | None:
    """What vLLM does where nothing is set: map the files, and on a network's file system read
    ahead in the background."""
    ways = seen.ways(label)
    if seen.storage(label).get("fs_type") in NETWORK:
        return first(ways, USUAL_ON_A_NETWORK) or first(ways, USUAL)
    return first(ways, USUAL)


def _cost(best: Row, caveat: str) -> str:
    parts = []
    if best.loader in CONVERTED:
        parts.append(f"needs {CONVERTED[best.loader]}")
    if best.group.ownership == "owned":
        size = format_size(round(best.peak_bytes)) if best.peak_bytes else "the files' size"
        parts.append(f"holds the bytes in memory of its own while loading ({size} seen at most)")
    if caveat:
        parts.append(caveat)
    return "; ".join(parts) or "nothing that this run saw"
