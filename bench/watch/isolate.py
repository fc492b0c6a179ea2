"""Several starts of one engine that differ in one thing each, and what their differences tell.

    cold    with the checkpoint's pages evicted before, which is proved by their residency
    warm    with all of them in the page cache
    eager   warm, with --enforce-eager
    dummy   warm, with --load-format dummy

The document: `runs` {name: {cache, exit_code, document}}, `left_out` {name: why},
`differences` [{way, isolates, seconds, doubt, verdict, assumes, differences}], `files` and `bytes`
of the checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.explain.isolate import Way, isolate, judged, largest_difference, twins_of
from bench.explain.record import ColdStart
from bench.measuring.pagecache import evict, warm
from bench.record.cachestate import ABSENT, PRESENT
from bench.sizes import format_size
from bench.watch.document import document, exit_code, record
from bench.watch.session import watch
from bench.watch.text import summary
from bench.watch.variants import comparisons, model_of
from bench.watch.watched import Wishes
from loaders.checkpoint.manifest import NoWeightsError, UnreadableError
from loaders.checkpoint.read import examine
from loaders.system.residency import Residency, choose_method

Tell = Callable[[list[str]], None]


class IsolateError(Exception):
    """The comparison can't be made: what is missing, and what to do."""


def isolated(command: Sequence[str], wishes: Wishes, tell: Tell) -> tuple[dict[str, Any], int]:
    """Makes the runs one after another. The document, and 0 if all were ready, 1 if one wasn't, 130
    if one was interrupted (then no more follow). IsolateError before anything is started,
    StartError if the engine can't be."""
    files = checkpoint_files(command)
    residency = choose_method(*files)
    commands, left_out = comparisons(command)
    runs: dict[str, dict[str, Any]] = {}
    records: dict[str, ColdStart] = {}
    code = 0
    for name, changed in commands.items():
        cache = _prepare(name, files, residency)
        tell([f"--- {name} run: {_cache_words(cache)}"])
        seen = watch(changed, wishes, say=lambda text: tell([text]))
        found = document(seen)
        tell(list(summary(found)))
        runs[name] = {"cache": cache, "exit_code": exit_code(seen), "document": found}
        records[name] = record(seen)
        code = max(code, exit_code(seen) and 1)
        if seen.outcome == "interrupted":
            code = 130
            break
    total = {"files": len(files), "bytes": sum(file.stat().st_size for file in files)}
    found = {"runs": runs, "left_out": left_out, "differences": list(compared(records, runs))}
    return {**found, **total}, code


def checkpoint_files(command: Sequence[str]) -> list[Path]:
    """The weight files of the model that the command line names: a folder or file here, or a Hub id
    that is in this host's cache."""
    model = model_of(command)
    if model is None:
        raise IsolateError(
            "no model in this command line: --isolate needs it to evict the checkpoint's pages. "
            "Write the engine's own command, as in `vllm serve MODEL ...` or `... --model MODEL`"
        )
    place = model if os.path.lexists(Path(model).expanduser()) else str(_cached(model))
    try:
        checkpoint = examine(place)
    except (UnreadableError, NoWeightsError) as error:
        raise IsolateError(f"the checkpoint that the command line names: {error}") from error
    files = [Path(checkpoint.root) / file.name for file in checkpoint.files]
    if not files:
        raise IsolateError(f"{model}: no weight files there")
    return files


def _cached(model: str) -> Path:
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    folder = hub / f"models--{model.replace('/', '--')}"
    if not folder.is_dir():
        raise IsolateError(
            f"{model}: no such path here, and not in the Hub's cache ({hub}). Download it first, "
            "or give the folder"
        )
    return folder


def _prepare(name: str, files: Sequence[Path], residency: Residency) -> dict[str, Any]:
    """Brings the page cache into the state that the run asks for, and says what was seen."""
    notes: list[str] = [residency.reason] if residency.reason else []
    if name == "cold":
        notes += evict(files, residency).notes
    else:
        warm(files, residency)
    fraction = residency.resident_fraction(files)
    wanted = "cold" if name == "cold" else "warm"
    if fraction is None:
        state = "unverified"
    elif name == "cold":
        state = "cold" if fraction <= ABSENT else "mixed"
    else:
        state = "warm" if fraction >= PRESENT else "mixed"
    return {
        "requested": wanted,
        "resident_before": fraction,
        "state": state,
        "method": residency.method,
        "notes": notes,
    }


def _cache_words(cache: Mapping[str, Any]) -> str:
    if cache["resident_before"] is None:
        return f"asked for a {cache['requested']} page cache, which can't be verified here"
    text = f"{cache['resident_before']:.1%} of the checkpoint is in the page cache"
    return text if cache["state"] == cache["requested"] else f"{text}: not {cache['requested']}"


def compared(
    records: Mapping[str, ColdStart], runs: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Each difference that the runs allow."""
    base = records.get("warm")
    if base is None:
        return
    if "cold" in records:
        yield _cold_warm(records["cold"], base, runs)
    ways: tuple[Way, ...] = ("eager", "dummy")
    others: dict[Way, ColdStart] = {way: records[way] for way in ways if way in records}
    for way, other in others.items():
        yield isolate(base, other, way, twins_of(way, others)).to_json()


def _cold_warm(
    cold: ColdStart, base: ColdStart, runs: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    a, b = weights_of(runs["cold"]), weights_of(runs["warm"])
    states = [runs[name]["cache"]["state"] for name in ("cold", "warm")]
    seconds = doubt = None
    if states != ["cold", "warm"]:
        verdict = (
            f"the page cache was {states[0]} and {states[1]}, not cold and warm: no difference"
        )
    elif a is None or b is None:
        verdict = "can't be subtracted: a run's lines don't bound its weights stage"
    else:
        # the run without graphs has the same weights stage as the warm one
        doubt = largest_difference(b, [weights_of(runs["eager"])] if "eager" in runs else [])
        told = f"weights stage: {a:.2f} s - {b:.2f} s = {a - b:.2f} s"
        seconds, doubt, verdict = judged(round(a - b, 3), doubt, told)
    unequal = isolate(base, cold, "eager").differences
    return {
        "way": "cold",
        "isolates": "reading the weights from storage",
        "seconds": seconds,
        "doubt": doubt,
        "verdict": verdict,
        "assumes": "that the engine does the same with its weights from memory; the weights stage "
        "alone is compared, since a first start also reads the engine's libraries and may compile",
        "differences": [text for text in unequal if not text.startswith("enforce_eager is")],
    }


def weights_of(run: Mapping[str, Any]) -> float | None:
    """Seconds of a run's weights stage, by the times at which its lines arrived."""
    for stage in run["document"]["watch"]["stages"]:
        if stage["name"] == "weights" and stage["explained"]:
            return float(stage["seconds"])
    return None


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The differences, for people."""
    size = format_size(found["bytes"])
    yield f"--- compared: {', '.join(found['runs'])}; checkpoint {size} in {found['files']} files"
    for one in found["differences"]:
        yield f"  {one['isolates']}: {one['verdict']}"
        yield f"      assumes {one['assumes']}"
        for text in one["differences"]:
            yield f"      not equal: {text}"
    for name, why in found["left_out"].items():
        yield f"  no {name} run: {why}"
