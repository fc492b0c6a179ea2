"""What `coldload explain` prints for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from loaders.checkpoint.text import printable


def show(out: Console, document: dict[str, Any]) -> None:
    """One log's document: its head, stages, findings, isolations, savings, fleet."""

    def line(text: str, style: str = "") -> None:
        out.print(Text(printable(text), style=style))

    for number, text in enumerate(_head(document)):
        line(text, "" if number else "bold")
    if document["timeline"]["stages"]:
        for number, text in enumerate(_stages(document["timeline"])):
            line(text, "" if number else "dim")
        for text in _slowest(document["timeline"]["stages"]):
            line(text)
    for finding in document["diagnosis"]:
        line(f"{finding['code']}: {finding['text']} ({_lines(finding['evidence'])})", "yellow")
        line(f"  {finding['next_step']}")
    for one in document.get("isolation", ()):
        line(f"by comparison, {one['way']}: {one['isolates']}: {one['verdict']}", "bold")
        line(f"  assumes {one['assumes']}")
        for difference in one["differences"]:
            line(f"  not equal: {difference}")
    if fitted := document.get("model_fit"):
        if fitted["reason"]:
            line(f"against the checkpoint: {fitted['reason']}")
        for row in fitted["ranking"]:
            line(
                f"  tp={row['tp']} pp={row['pp']} dp={row['dp']} ep={row['ep']}: "
                f"{row['predicted_gib']:.4g} GiB a worker ({row['deviation']:+.1%})"
            )
    if told := _savings(document["savings"]):
        line("what would it save, of one start", "bold")
        for number, text in enumerate(told):
            line(f"  {text}", "" if number else "dim")
    if reason := document.get("rates_reason"):
        line(f"  nothing is expected: {reason}")
    if rates := document.get("rates"):
        current = (
            f", {rates['current_name']} {rates['current']:.2f} GB/s"
            if rates["current"]
            else "; the engine's own way isn't in it"
        )
        line(
            f"  expected: by {rates['run']}: {rates['best_name']} {rates['best']:.2f} GB/s"
            f"{current}, cold, one process; what the stage takes beyond that rate isn't reading"
        )
    if found := document.get("fleet"):
        for text in _fleet(found):
            line(text)


def _head(document: dict[str, Any]) -> Iterator[str]:
    phases = document["phases"]
    version = f"vLLM {document['vllm_version'] or '(version unknown)'}"
    engine = f" ({document['engine']})" if document["engine"] else ""
    wall = phases["startup_wall_secs"]
    after = f" after {wall:g} s" if wall is not None else ""
    yield f"{document['log']}: {version}{engine}, {document['status']}{after}"
    settings = [
        f"{key}={document[key]}"
        for key in (
            "model",
            "dtype",
            "quantization",
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "load_format",
            "device",
        )
        if document[key] is not None
    ]
    if settings:
        yield f"  {', '.join(settings)}"
    if document["failure"]:
        yield f"  {document['failure_kind']}: {document['failure']}"
    told = []
    if phases["weights_gb"] is not None:
        told.append(f"weights {phases['weights_gb']:g} {phases['weights_unit']} a worker")
    if phases["shards_total"]:
        told.append(f"shards {phases['shards_done']} of {phases['shards_total']}")
    if phases["num_gpu_blocks"] is not None:
        told.append(f"{phases['num_gpu_blocks']:,} blocks")
    if phases["kv_cache_tokens"] is not None:
        told.append(f"KV pool {phases['kv_cache_tokens']:,} tokens")
    if told:
        yield f"  {', '.join(told)}"


def _stages(timeline: dict[str, Any]) -> list[str]:
    rows = [("stage", "seconds", "share", "known from", "lines")]
    for stage in timeline["stages"]:
        share = f"{stage['share']:.1%}" if stage["share"] is not None else ""
        name = ("  " if stage["within"] else "") + stage["name"]
        rows.append(
            (name, f"{stage['seconds']:.1f}", share, stage["source"], _numbers(stage["lines"]))
        )
    rest = timeline["unexplained"]
    if rest is not None:
        share = f"{rest / timeline['wall']:.1%}" if timeline["wall"] else ""
        note = "stages of several processes overlap" if rest < 0 else ""
        rows.append(("no line explains", f"{rest:.1f}", share, note, ""))
    return _columns(rows, right=(1, 2))


def _slowest(stages: Sequence[dict[str, Any]]) -> Iterator[str]:
    for stage in stages:
        if stage["slowest"]:
            times = sorted(stage["workers"].items(), key=lambda pair: -pair[1])
            named = ", ".join(f"{name} {seconds:g}" for name, seconds in times[:8])
            more = f" and {len(times) - 8} more" if len(times) > 8 else ""
            yield f"  {stage['name']}, slowest {stage['slowest']}: {named}{more} s"


def _savings(rows: Sequence[dict[str, Any]]) -> list[str]:
    if not any(row["at_most"] for row in rows):
        return []
    told = [("remedy", "at most", "expected", "touches", "what it costs")]
    for row in rows:
        if row["at_most"] is not None:
            expected = "" if row["expected"] is None else f"{row['expected']:.1f} s"
            at_most = f"{row['at_most']:.1f} s"
            told.append((row["remedy"], at_most, expected, row["touches"], row["cost"]))
    return _columns(told, right=(1, 2))


def _fleet(found: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{found['replicas']} replicas: all up after {found['seconds_until_all_up']:.0f} s "
        f"(limit: {found['limit']}), {found['hours_per_month']:.1f} hours a month at "
        f"{found['starts_per_day']:g} starts a day"
    )
    yield f"  {found['formula']}"
    if found["shared_seconds"] is None:
        yield (
            "  the shared limit isn't known: it takes --shared-bandwidth, and a checkpoint size "
            "(--model, or a line of the log)"
        )


def _columns(rows: Sequence[tuple[str, ...]], right: tuple[int, ...]) -> list[str]:
    """Rows as lines with aligned columns; never wrapped, for whoever pipes them wants to grep."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _numbers(lines: Sequence[int]) -> str:
    return ", ".join(map(str, lines[:6])) + (" ..." if len(lines) > 6 else "")


def _lines(lines: Sequence[int]) -> str:
    return f"line{'s' if len(lines) != 1 else ''} {_numbers(lines)}" if lines else "no line"
