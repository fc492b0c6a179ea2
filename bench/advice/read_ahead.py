"""More read-ahead by the kernel, where mapped reads wait for a storage that could give more."""

from __future__ import annotations

from shlex import quote
from statistics import median

from bench.advice.contract import Advice, Seen, rate_words, saving, seconds
from bench.advice.loader import usual_way
from bench.record.summary import Group
from bench.words.limits_seen import limit

ENOUGH_KB = 4096
TO_KB = 16384
WAITS = "too few reads in flight"


def find(seen: Seen) -> Advice | None:
    """The usual way waits for its reads, and the kernel reads less ahead than ENOUGH_KB. What it
    would save is at most the way to the storage's own rate."""
    for label in seen.labels:
        row, facts = usual_way(seen, label), seen.storage(label)
        ahead = (facts.get("block") or {}).get("read_ahead_kb")
        if row is None or not isinstance(ahead, int) or ahead >= ENOUGH_KB:
            continue
        ring = seen.tops.get(Group(storage=label, cache="cold", ownership="borrowed"))
        if not ring or limit(row, seen.tops, seen.run.cores) != WAITS:
            continue
        saved = saving(seconds(row.rates, row.nbytes), seconds(ring, row.nbytes), at_most=True)
        if saved is None:
            continue
        disk = facts["block"].get("disk")
        path = f"/sys/block/{disk}/queue/read_ahead_kb"
        return Advice(
            name="read-ahead",
            title=f"Let the kernel read further ahead on {label}",
            seen=f"Cold on {label}: {row.title} {rate_words(row)}, while the storage gives "
            f"{median(ring.values()):.2f} GB/s; the kernel reads {ahead} KiB ahead.",
            do=(f"echo {TO_KB} | sudo tee {quote(path)}",),
            cost="other programs that read here and there on that disk fetch more than they need; "
            "gone at the next boot unless a udev rule sets it",
            saving=saved,
        )
    return None
