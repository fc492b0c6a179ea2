"""The plan's document as lines for people."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.plan.percard import GIB
from bench.sizes import format_size
from loaders.checkpoint.text import count, printable

_MOST_MATCHES = 5
_MOST_NAMED = 10
_Rank = Mapping[str, Any]


def lines(document: Mapping[str, Any]) -> Iterator[str]:
    """The document of `bench.plan.planning.answer`, its text made safe for a terminal."""
    degrees = document["degrees"]
    named = ", ".join(f"{name} {degrees[name]}" for name in ("tp", "pp", "dp", "ep"))
    size = format_size(document["tensor_bytes"])
    yield printable(f"{document['model']}: {size} of tensors; {named}: {_ranks(degrees['world'])}")
    yield f"as {document['engine']} does it, with the rules of {printable(document['rules'])!r}"
    for reason, nbytes in _summed(document["skipped"]).items():
        yield printable(f"no rank keeps {format_size(nbytes)}: {reason}")
    yield ""
    yield from _table(document["ranks"])
    yield ""
    yield from _classes(document["ranks"])
    total, factor = format_size(document["kept_bytes"]), document["replication"]
    if factor is not None:
        yield f"all ranks together keep {total}: every byte {factor:.2f} times on average"
    yield from _assembly(document["assembly"])
    yield from _kv(document["kv"])
    if document["weights"] is not None:
        yield ""
        yield document["weights"]["verdict"]
        yield from _matches(document["matches"])
    for note in document["notes"]:
        yield printable(f"note: {note}")
    for parameter in document.get("parameters", ()):
        yield from _parameter(parameter)


def _assembly(found: Mapping[str, Any]) -> Iterator[str]:
    """A draft model, ties, and what doesn't fit: the first few, and how many there are."""
    if found["draft"] is not None:
        draft = found["draft"]
        yield (
            f"beside it a draft model of {count(len(draft['layers']), 'layer')}: "
            f"{format_size(draft['bytes'])}, loaded by itself"
        )
    if found["tied"]:
        yield printable(f"tied, kept once: {', '.join(found['tied'])}")
    for what, texts in (
        ("UNFILLED", [f"{one['parameter']} lacks {one['lacks']}" for one in found["unfilled"]]),
        ("surplus", [f"{name}: {reason}" for name, reason in found["surplus"].items()]),
    ):
        for text in texts[:_MOST_NAMED]:
            yield printable(f"{what}: {text}")
        if len(texts) > _MOST_NAMED:
            yield f"{what}: and {len(texts) - _MOST_NAMED} more (all with --json)"


def _ranks(number: int) -> str:
    return count(number, "rank")


def _summed(skipped: Mapping[str, int]) -> Mapping[str, int]:
    return dict(sorted(skipped.items(), key=lambda item: -item[1]))


def _table(ranks: Sequence[_Rank]) -> Iterator[str]:
    """Ranks with the same figures share a line."""
    head = (
        "rank",
        "layers",
        "experts",
        "keeps",
        "allocates",
        "reads all",
        "its slices",
        "EP filter",
    )
    rows = [head]
    for some in _alike(ranks):
        one, read = some[0], some[0]["read_bytes"]
        first, end = one["layers"]
        rows.append(
            (
                _spans([rank["rank"] for rank in some]),
                f"{first}-{end - 1}" if end > first else "none",
                "-" if one["experts"] is None else str(one["experts"]),
                format_size(one["kept_bytes"]),
                format_size(one["weights_bytes"]),
                format_size(read["all"]),
                format_size(read["slice"]),
                format_size(read["ep_filter"]),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


def _alike(ranks: Sequence[_Rank]) -> list[list[_Rank]]:
    groups: dict[str, list[_Rank]] = {}
    for rank in ranks:
        same = {key: value for key, value in rank.items() if not key.endswith("rank")}
        groups.setdefault(repr(same), []).append(rank)
    return list(groups.values())


def _spans(numbers: Sequence[int]) -> str:
    """0-3,8 for 0, 1, 2, 3, 8."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def _classes(ranks: Sequence[_Rank]) -> Iterator[str]:
    """Bytes kept by class of tensor: the least and the most that a rank has."""
    names = dict.fromkeys(name for rank in ranks for name in rank["by_class"])
    for name in names:
        sizes = [rank["by_class"].get(name, 0) for rank in ranks]
        low, high = min(sizes), max(sizes)
        span = format_size(high) if low == high else f"{format_size(low)} to {format_size(high)}"
        yield printable(f"  {name:<16} {span} a rank")
    for key, what in (
        ("padding_bytes", "rows of padding"),
        ("after_load_bytes", "copies that MLA makes after loading"),
    ):
        most = max(rank[key] for rank in ranks)
        if most:
            yield f"  and {what}: up to {format_size(most)} a rank"


def _kv(kv: Mapping[str, Any]) -> Iterator[str]:
    if kv["block_bytes"] is None:
        return
    block = f"{kv['block_bytes']:,} bytes"
    yield f"KV cache: a block of {kv['block_size']} tokens takes {block} on a worker"
    if kv["num_gpu_blocks"] is not None:
        yield (
            f"  {format_size(max(0, kv['pool_bytes']))} for it: {kv['num_gpu_blocks']:,} blocks, "
            f"{kv['tokens']:,} tokens" + _concurrency(kv["concurrency"])
        )
    if kv["num_cpu_blocks"] is not None:
        yield f"  {kv['num_cpu_blocks']:,} blocks in swap space"


def _concurrency(value: float | None) -> str:
    return "" if value is None else f", {math.floor(value * 100) / 100:.2f} requests of full length"


def _matches(matches: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for one in matches[:_MOST_MATCHES]:
        named = ", ".join(f"{name} {one[name]}" for name in ("tp", "pp", "dp", "ep"))
        low, high = one["least_bytes"] / GIB, one["most_bytes"] / GIB
        span = "" if one["least_bytes"] == one["most_bytes"] else f" ({low:.4f} to {high:.4f})"
        yield (
            f"  {named}: {one['predicted_bytes'] / GIB:.4f} GB a worker{span}, "
            f"{one['deviation']:+.2%}, {_ranks(one['world'])}"
        )


def _parameter(parameter: Mapping[str, Any]) -> Iterator[str]:
    yield printable(f"{parameter['name']} {parameter['dtype']} {parameter['shape']}")
    for piece in parameter["pieces"]:
        yield printable(
            f"  {piece['tensor']} dim {piece['dim']} [{piece['start']}:{piece['stop']}] "
            f"at {list(piece['at'])}" + _range(piece["file_range"])
        )


def _range(run: Mapping[str, Any] | None) -> str:
    if run is None:
        return ""
    repeated = f" x {run['count']:,}, every {run['stride']:,}" if run["count"] > 1 else ""
    return f"  {run['file']} {run['offset']:,} + {run['length']:,}{repeated}"
