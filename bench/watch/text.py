"""What was watched, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.sizes import format_size
from bench.watch.makeup import KINDS, WORDS
from loaders.checkpoint.text import count, printable

_LEAST = 0.05  # of a stage: smaller parts aren't named


def summary(found: Mapping[str, Any]) -> Iterator[str]:
    """Lines for the document of `bench.watch.document`."""
    seen = found["watch"]
    yield headline(found)
    for stage in seen["stages"]:
        yield from _stage(stage)
    if len(seen["stages"]) > 1:
        yield from _stage(seen["whole"])
    own = seen["own"]
    if own["share_of_core"] is not None:
        yield (
            f"  watching cost {own['cpu_seconds']:.2f} s of CPU, {own['share_of_core']:.1%} of a "
            f"core, in {count(own['looks'], 'look')}"
        )


def headline(found: Mapping[str, Any]) -> str:
    """One sentence: how it went."""
    seen = found["watch"]
    if seen["ready_seconds"] is not None:
        by = "its log line" if seen["ready_by"] == "log" else "its answer to the ready URL"
        text = f"ready after {seen['ready_seconds']:.2f} s ({by})"
        return text + _first_token(seen["first_token"]) + _later(seen)
    if found["status"] == "ready":
        return "ready, as its log tells" + _later(seen)
    if seen["outcome"] == "interrupted":
        return "interrupted before it was ready; all its processes were ended"
    if seen["outcome"] == "timeout":
        return "not ready within the time given; all its processes were ended"
    text = f"ended before it was ready, after {seen['ended_seconds'] or 0:.2f} s, with "
    text += str(seen["how_it_ended"])
    if seen["left_over"]:
        text += f"; what it left behind was ended (processes: {seen['left_over']})"
    told = found["failure"]
    known = told is None or str(seen["how_it_ended"]) in told
    return text if known else f"{text}: {printable(told)}"


def _later(seen: Mapping[str, Any]) -> str:
    if seen["outcome"] == "died":
        return f"; then it ended with {seen['how_it_ended']}"
    return "; then interrupted" if seen["outcome"] == "interrupted" else ""


def _first_token(token: Mapping[str, Any] | None) -> str:
    if token is None:
        return ""
    if token["seconds"] is None:
        return f"; no first token: {printable(token['reason'])}"
    return (
        f", first token after {token['seconds']:.2f} s "
        f"({token['request_seconds'] * 1000:.0f} ms after it was asked for)"
    )


def _stage(stage: Mapping[str, Any]) -> Iterator[str]:
    share = f"{stage['share']:.0%}" if stage["share"] is not None else "-"
    text = f"  {stage['title']:<26}{stage['seconds']:9.2f} s {share:>5}  {made_of(stage)}"
    yield text.rstrip() + ("" if stage["explained"] else " (no line told its end)")
    if stage["counted"] is not None:
        yield f"  {'':<26}{'':>17}  {figures(stage['counted'])}"


def made_of(stage: Mapping[str, Any]) -> str:
    """ "faulting pages 5.10 s, computing 1.50 s": the parts of a stage, the largest first."""
    if stage["made_of"] is None or not stage["seconds"]:
        return ""
    seconds = stage["made_of"]["seconds"]
    parts = sorted(KINDS, key=lambda kind: -seconds[kind])
    named = [kind for kind in parts if seconds[kind] >= _LEAST * stage["seconds"]]
    return ", ".join(f"{WORDS[kind]} {seconds[kind]:.2f} s" for kind in named)


def figures(counted: Mapping[str, Any]) -> str:
    """What was counted, in words; what this kernel doesn't count isn't mentioned."""
    parts = [f"CPU {counted['cpu_seconds']:.2f} s ({counted['cores']:.2f} cores)"]
    if counted["device_bytes"] is not None:
        rate = counted["device_gbps"]
        parts.append(f"{format_size(counted['device_bytes'])} from storage ({rate:.3g} GB/s)")
    if counted["read_bytes"] is not None:
        parts.append(f"{format_size(counted['read_bytes'])} by read calls")
    parts.append(
        f"{count(counted['major_faults'], 'major fault')}, "
        f"{count(counted['minor_faults'], 'minor fault')}"
    )
    if counted["peak_resident_bytes"] is not None:
        parts.append(f"{format_size(counted['peak_resident_bytes'])} resident")
    short = counted["short_of_cores_seconds"]
    if short is not None and short > _LEAST * counted["wall_seconds"]:
        parts.append(f"on this host something waited for a core for {short:.2f} s")
    if counted["device_memory_bytes"] is not None:
        parts.append(f"{format_size(counted['device_memory_bytes'])} on the accelerators")
    return ", ".join(parts)
