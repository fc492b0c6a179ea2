"""The engine's multi-thread option where it costs time: its threads only make views."""

from __future__ import annotations

from bench.advice.contract import Advice, Seen, between, first, rate_words


def find(seen: Seen) -> Advice | None:
    """Mapping by threads was slower than mapping, on a storage that was read cold."""
    for label in seen.labels:
        ways = seen.ways(label)
        threaded, plain = first(ways, "safetensors-threads"), first(ways, "safetensors-mmap")
        saved = between(threaded, plain) if threaded and plain else None
        if threaded is None or plain is None or saved is None:
            continue
        return Advice(
            name="useless-threads",
            title="Leave enable_multithread_load out for safetensors files",
            seen=f"Cold on {label}: {rate_words(threaded)} with it, {rate_words(plain)} without. "
            f"Its threads open the files and make views; the bytes come when they are touched.",
            do=("--model-loader-extra-config without enable_multithread_load",),
            cost="nothing; what it saves holds for those who have set it",
            saving=saved,
        )
    return None
