"""Files into the page cache before the engine comes to them."""

from __future__ import annotations

from bench.advice.contract import Advice, Seen, between, rate_words
from bench.advice.loader import usual_way
from bench.record.summary import Row
from bench.sizes import format_size
from bench.words.names import named


def find(seen: Seen) -> Advice | None:
    """The usual way was measured cold and warm, and memory holds the files."""
    found = [advice for label in seen.labels if (advice := _on(seen, label)) is not None]
    return max(found, key=lambda one: one.saving.seconds if one.saving else 0.0, default=None)


def _on(seen: Seen, label: str) -> Advice | None:
    cold = usual_way(seen, label)
    warm = _same(seen.ways(label, "warm"), cold) if cold else None
    usable = (seen.host.get("memory") or {}).get("usable_bytes")
    if cold is None or warm is None or (isinstance(usable, int) and usable < cold.nbytes):
        return None
    saved = between(cold, warm)
    if saved is None:
        return None
    room = f" ({format_size(usable)} usable here)" if isinstance(usable, int) else ""
    return Advice(
        name="warm-up",
        title="Read the files into the page cache while the engine starts",
        seen=f"On {label}, {cold.title}: {rate_words(cold)} cold, {rate_words(warm)} when the "
        f"files were in memory already.",
        do=("cat /path/to/model/*.safetensors > /dev/null &   # before the engine is started",),
        cost=f"reading takes its {cold.seconds['total']:.2f} s all the same: it is saved only "
        f"where the engine does something else meanwhile, or starts again later; it needs free "
        f"memory for the whole model{room}, and counts against a container's limit",
        saving=saved,
    )


def _same(rows: list[Row], like: Row) -> Row | None:
    return next((row for row in rows if named(row) == named(like)), None)
