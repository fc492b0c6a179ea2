"""A first look at a storage: how it wants to be read, and about how fast it is.

Two seconds of trials before a run, to choose the ceilings' block size, thread count and kind of
memory for this storage (on another host the best are others) and to tell how long the run will
take. The rates found here decide that and nothing else: what is reported is measured in the passes.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from bench.measuring.ceilings import Outcome, owned, ring
from bench.measuring.channel import Channel
from bench.measuring.child import Stopwatch
from bench.measuring.pagecache import evict
from bench.measuring.pieces import one_piece

MIB = 1 << 20
FILE_BYTES = 256 * MIB
TRIAL_BYTES = 64 * MIB
LONG_TRIAL_BYTES = 128 * MIB
RING_BYTES = 64 * MIB
TIE = 0.03
BLOCKS = (4 * MIB, 16 * MIB, MIB)
PAGES = ("huge", "4k")

Options = dict[str, Any]


def write_probe_file(path: Path, nbytes: int = FILE_BYTES) -> None:
    """Incompressible bytes to try a storage with, on disk when this returns."""
    draw = np.random.default_rng(0)
    with path.open("wb") as opened:
        for start in range(0, nbytes, 32 * MIB):
            opened.write(draw.bytes(min(32 * MIB, nbytes - start)))
        opened.flush()
        os.fsync(opened.fileno())


def first_look(channel: Channel, *, path: str, cores: int) -> None:
    """Sends `{"direct", "cache", "owned_cold", "owned_warm", "rates"}`: the chosen options of each
    ceiling (owned ones by page kind), and rates in bytes per second. A file smaller than a trial
    (smoke mode, tiny models) isn't tried out: the first of each list is taken."""
    torch.set_num_threads(cores)
    size = Path(path).stat().st_size
    quick = size < TRIAL_BYTES
    threads = sorted({1, cores, 2 * cores, 4 * cores}, key=lambda count: abs(count - 2 * cores))

    def rate(make: Callable[..., Any], options: Options, nbytes: int, cold: bool) -> float:
        if cold and not options["direct"]:
            evict([Path(path)])
        pieces = one_piece(path, min(nbytes, size))
        with ExitStack() as stack:
            work = make(stack, [pieces], cores, options)
            outcome = Outcome()
            began = time.perf_counter()
            work(Stopwatch(), outcome)
            return outcome.tally.nbytes / (time.perf_counter() - began)

    def best(make: Callable[..., Any], tried: list[Options], cold: bool) -> Options:
        """Of the few fastest in a short trial each, the one with the best median of longer ones,
        taken in turn; more threads where it makes no difference, since a slower hour may need
        them."""
        if quick:
            return tried[0]
        tried = sorted(tried, key=lambda options: -rate(make, options, TRIAL_BYTES, cold))[:4]
        rounds = [
            [rate(make, options, LONG_TRIAL_BYTES, cold) for options in tried] for _ in range(3)
        ]
        medians = [median(rates) for rates in zip(*rounds, strict=True)]
        good = [
            options
            for options, found in zip(tried, medians, strict=True)
            if found >= (1 - TIE) * max(medians)
        ]
        return max(good, key=lambda options: options["threads"])

    evict([Path(path)])
    rings: list[Options] = [
        {"direct": True, "block": block, "threads": count, "pages": pages}
        for block, count, pages in itertools.product(BLOCKS, threads, PAGES)
        if block * count * 2 <= RING_BYTES
    ]
    plain = [{**options, "direct": False} for options in rings if options["threads"] <= 2 * cores]
    whole: Options = {"direct": False, "block": 16 * MIB, "threads": cores, "pages": "4k"}
    found: dict[str, Any] = {"direct": best(ring, rings, cold=True)}
    found["rates"] = {
        "direct": rate(ring, found["direct"], LONG_TRIAL_BYTES, cold=True),
        "cold": rate(owned, whole, FILE_BYTES, cold=True),
        "warm": rate(owned, whole, FILE_BYTES, cold=False),
    }
    found["cache"] = best(ring, plain, cold=False)
    for name, cold in (("owned_cold", True), ("owned_warm", False)):
        found[name] = {
            pages: best(
                owned,
                [
                    # Through the cache each byte needs two fresh pages. A short trial doesn't see
                    # what that costs, a whole checkpoint does (0.58 against 1.10 GB/s at 4 GiB).
                    {"direct": cold, "block": 16 * MIB, "threads": count, "pages": pages}
                    for count in (cores, 2 * cores)
                ],
                cold,
            )
            for pages in PAGES
        }
    channel.send(found)


def ceiling_options(look: Mapping[str, Any], reader: str, case: Mapping[str, Any]) -> Options:
    """What the first look chose for a storage's ceiling; `case` holds its own options."""
    chosen = {
        "direct-ring": look["direct"],
        "cache-ring": look["cache"],
    }
    if reader in chosen:
        return dict(chosen[reader])
    state = "owned_cold" if case["cache"] == "cold" else "owned_warm"
    return dict(look[state][case["pages"]])
