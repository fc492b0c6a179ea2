"""Tables of a ranks run: each way altogether, and rank by rank. Reads samples only."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.record.records import Sample
from loaders.checkpoint.text import printable

GB = 1e9
GIB = 1 << 30
WIDTH = 160
"""Tables are as wide as they need; where the terminal is narrower, a figure isn't cut."""

LEGEND = (
    "GB/s: bytes that all ranks keep, from the earliest start to the last rank's end. fetched: how "
    "often the files' bytes came from the device, all ranks together (1 is once for all); group: "
    "the same by the control group's count, others in it included."
)
STAMPS = ("open", "allocate", "read", "exchange", "transfer")


def summary(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """One row a way, fastest first, from the passes that went well; seconds, bytes and GB/s are
    medians, `range` the least and the greatest rate. `fetched` is how often the files' bytes came
    from the device for all ranks together."""
    rows = []
    for way in dict.fromkeys(sample.loader for sample in samples):
        good = [one for one in samples if one.loader == way and one.status == "ok"]
        if not good:
            continue
        rates = [_rate(one) for one in good]
        rows.append(
            {
                "way": way,
                "passes": len(good),
                "ranks": len(good[0].details["ranks"]),
                "rate": median(rates),
                "range": [min(rates), max(rates)],
                "first_done": median(one.details["first_done"] for one in good),
                "last_done": median(one.details["last_done"] for one in good),
                "fetched": _median([_times(one, one.cache.device_read_bytes) for one in good]),
                "group_fetched": _median([_times(one, one.cache.group_read_bytes) for one in good]),
                "states": sorted({one.cache.state for one in good}),
                "collective": good[0].details["collective"],
                "by_rank": _by_rank(good),
            }
        )
    return sorted(rows, key=lambda row: row["last_done"])


def _rate(sample: Sample) -> float:
    assert sample.bytes is not None
    return float(sample.bytes / sample.details["last_done"] / GB)


def _times(sample: Sample, nbytes: int | None) -> float | None:
    whole = sample.details["file_bytes"]
    return nbytes / whole if nbytes is not None and whole else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known and len(known) == len(values) else None


def _by_rank(good: Sequence[Sample]) -> list[dict[str, Any]]:
    """Medians over the passes, by rank."""
    found = []
    for first in good[0].details["ranks"]:
        mine = [r for one in good for r in one.details["ranks"] if r["rank"] == first["rank"]]
        names = (*STAMPS, "total", "started_at", "done_at", "asked", "fetched", "peak_rss_bytes")
        values = {name: _median([one[name] for one in mine]) for name in names}
        found.append(
            {"rank": first["rank"], "host": first["host"], "bytes": first["bytes"], **values}
        )
    return found


def show(samples: Sequence[Sample], out: Console) -> None:
    """The tables, then a line for each case that failed."""
    out.width = max(out.width, WIDTH)
    rows = summary(samples)
    if rows:
        out.print(_ways(rows))
        out.print(LEGEND)
        for row in rows:
            out.print()
            out.print(_ranks(row))
    for sample in samples:
        if sample.status != "ok":
            said = f"failed: {sample.loader}, pass {sample.pass_number}: {sample.reason}"
            out.print(escape(printable(said)))


def _ways(rows: Sequence[dict[str, Any]]) -> Table:
    found = Table(box=None, pad_edge=False, header_style="bold")
    found.add_column("way", no_wrap=True)
    for title in ("ranks", "GB/s", "range", "first s", "last s", "fetched", "group"):
        found.add_column(title, justify="right", no_wrap=True)
    found.add_column("was")
    for row in rows:
        low, high = row["range"]
        found.add_row(
            row["way"],
            str(row["ranks"]),
            f"{row['rate']:.2f}",
            f"{low:.2f}-{high:.2f}" if row["passes"] > 1 else "1 pass",
            f"{row['first_done']:.3f}",
            f"{row['last_done']:.3f}",
            _text("{:.2f}", row["fetched"]),
            _text("{:.2f}", row["group_fetched"]),
            ", ".join(row["states"]),
        )
    return found


def _ranks(row: dict[str, Any]) -> Table:
    found = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    found.title = f"{row['way']}, rank by rank (seconds; {row['collective']})"
    used = [name for name in STAMPS if any(one[name] for one in row["by_rank"])]
    titles = [*used, "done at", "GB/s", "kept GiB", "fetched"]
    found.add_column("rank", no_wrap=True)
    for title in titles:
        found.add_column(title, justify="right", no_wrap=True)
    for one in row["by_rank"]:
        found.add_row(
            f"{one['rank']} {escape(printable(one['host']))}",
            *(f"{one[name]:.3f}" for name in used),
            f"{one['done_at']:.3f}",
            f"{one['bytes'] / one['total'] / GB:.2f}" if one["total"] else "",
            f"{one['bytes'] / GIB:.3f}",
            _text("{:.3f} GiB", None if one["fetched"] is None else one["fetched"] / GIB),
        )
    return found


def _text(form: str, value: float | None) -> str:
    return "-" if value is None else form.format(value)
