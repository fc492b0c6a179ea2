"""The model on the faster of two storages that were measured."""

from __future__ import annotations

from shlex import quote

from bench.advice.contract import Advice, Seen, between, rate_words
from bench.words.names import named


def find(seen: Seen) -> Advice | None:
    """The fastest cold way of the slowest storage against that of the fastest, in one run."""
    bests = [ways[0] for label in seen.labels if (ways := seen.ways(label))]
    if len(bests) < 2:
        return None
    fast = max(bests, key=lambda row: row.rate.median)
    slow = min(bests, key=lambda row: row.rate.median)
    saved = between(slow, fast)
    if saved is None:
        return None
    here = seen.storage(fast.group.storage)
    folder = here.get("path") or here.get("mount_point")
    where = quote(folder) if folder else "/path/on/the/faster/storage"
    return Advice(
        name="storage",
        title=f"Keep the model on {fast.group.storage}, not on {slow.group.storage}",
        seen=f"Cold at best: {named(fast)} {rate_words(fast)} on {fast.group.storage}, "
        f"{named(slow)} {rate_words(slow)} on {slow.group.storage}.",
        do=(f"cp -r /path/to/model {where}/", f"--model {where}/model"),
        cost=f"copying once takes at least the {slow.seconds['total']:.2f} s of a cold load there "
        f"(for the bytes of this run); space for the model",
        saving=saved,
    )
