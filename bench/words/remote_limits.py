"""Why a store's rate is below its link: requests, waiting, streams, retries. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

MANY_RETRIES = 0.02
"""Retries per request from which on they are the first thing to say."""

MUCH_WAITING = 0.25
"""The share of a request's time spent waiting for its first byte from which on it is the limit."""

FULL_LINK = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """One load from a store: bytes received, seconds of the whole, requests for ranges and their
    retries, bytes per request (at most), requests at a time, files. `latency`: seconds from a
    request to its first byte, on average, None where nobody tells. `link`: bytes per second that
    the network could carry, None if unknown."""

    nbytes: int
    seconds: float
    requests: int
    retries: int
    chunk_bytes: int
    concurrency: int
    files: int
    latency: float | None = None
    link: float | None = None

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self.nbytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def at_a_time(self) -> int:
        """Requests that can be under way at once: no more than there are."""
        return max(min(self.concurrency, self.requests), 1)

    @property
    def request_seconds(self) -> float:
        """How long one request takes, if all streams were busy all the time."""
        return self.seconds * self.at_a_time / max(self.requests, 1)

    @property
    def waiting(self) -> float | None:
        """The share of a request's time before its first byte."""
        if self.latency is None or self.request_seconds <= 0:
            return None
        return min(self.latency / self.request_seconds, 1.0)


def fetched(
    counts: dict[str, int],
    *,
    seconds: float,
    chunk_bytes: int,
    concurrency: int,
    files: int,
    link: float | None = None,
) -> Fetched:
    """From a loader's `counts` (loaders.store.ranges.Ranges)."""
    requests = counts.get("requests", 0)
    waited = counts.get("wait_us", 0)
    return Fetched(
        nbytes=counts.get("bytes", 0),
        seconds=seconds,
        requests=requests,
        retries=counts.get("retries", 0),
        chunk_bytes=chunk_bytes,
        concurrency=concurrency,
        files=files,
        latency=waited / 1e6 / requests if waited and requests else None,
        link=link,
    )


def explain(one: Fetched) -> str:
    """One sentence: what was asked for and how, what limits the rate, and what to change."""
    if one.requests == 0:
        return "no request was made"
    files = f"{one.files} file{'s' * (one.files != 1)}"
    how = (
        f"{one.rate / 1e9:.3g} GB/s in {one.requests:,} requests of up to "
        f"{one.chunk_bytes / 2**20:.3g} MiB, {one.concurrency} at a time, from {files}"
    )
    return f"{how}: {_limit(one)}"


def _limit(one: Fetched) -> str:
    if one.retries > MANY_RETRIES * one.requests:
        return (
            f"{one.retries:,} retries: the store cuts or refuses requests; fewer at a time "
            "(--threads) may be faster"
        )
    if one.link is not None and one.rate >= FULL_LINK * one.link:
        return f"{one.rate / one.link:.0%} of the link: the link is the limit"
    if one.requests < one.concurrency:
        smaller = max(one.nbytes // (4 * one.concurrency) >> 20, 1)
        return (
            f"only {one.requests} of {one.concurrency} streams had anything to do: smaller "
            f"requests (chunk_mib={smaller}) occupy them all"
        )
    if one.latency is not None and one.waiting is not None and one.waiting >= MUCH_WAITING:
        wanted = ceil(one.chunk_bytes / 2**20 * one.waiting / (1 - min(one.waiting, 0.9)) * 2)
        larger = max(wanted, ceil(one.chunk_bytes / 2**19))
        return (
            f"each request waits {one.latency * 1e3:.0f} ms for its first byte, {one.waiting:.0%} "
            f"of its time: larger ones (chunk_mib={larger}) or more at a time (--threads) hide it"
        )
    stream = one.rate / one.at_a_time
    text = (
        f"each stream carries {stream / 1e9:.3g} GB/s, and its time is not spent waiting for first "
        "bytes"
    )
    if one.latency is None:
        text = f"each stream carries {stream / 1e9:.3g} GB/s, its waiting included"
    if one.link is not None:
        needed = ceil(one.link / stream) if stream > 0 else 0
        return f"{text}: {needed} streams would fill the link, if the store gives each as much"
    return f"{text}: if more at a time (--threads) isn't faster, the link or the store is the limit"
