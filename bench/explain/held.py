"""What the workers hold, against what the checkpoint and the stated degrees let expect."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bench.explain.build import sizes
from bench.explain.findings import Finding
from bench.explain.record import ColdStart
from bench.explain.state import State
from bench.explain.timeline import Timeline

_BITS = {"float32": 32, "bfloat16": 16, "float16": 16, "half": 16, "float": 32}
_EIGHT = re.compile(r"fp8|int8|w8|ascend|compressed|modelopt|smooth", re.I)
_FOUR = re.compile(r"awq|gptq|fp4|int4|w4|bitsandbytes|marlin|gguf", re.I)
# methods that make 8 or 4 bits of 16 while they load, where the checkpoint isn't quantised yet
_MAKES_EIGHT = re.compile(r"(?:fp8|mxfp8|int8_per|experts_int8|torchao|quark)", re.I)
_MAKES_FOUR = re.compile(r"bitsandbytes|mxfp4|nvfp4", re.I)


def weights_size(state: State, record: ColdStart, times: Timeline) -> Iterator[Finding]:
    phases = record.phases
    if phases.weights_gb is None:
        return
    lines = record.evidence["weights_gb"]
    if phases.weights_gb == 0:
        yield Finding(
            code="implausible_weights",
            text="the weights are printed as 0: memory that another process freed meanwhile was "
            "counted against them",
            evidence=lines,
            next_step="Take no rate from this figure; see that nothing else uses the card.",
        )
        return
    ranks = (record.tensor_parallel_size or 1) * (record.pipeline_parallel_size or 1)
    checkpoint = state.one("file_system")
    total = checkpoint.number(1) if checkpoint else None
    source = "its checkpoint has"
    if total is None and record.model and record.model.count("/") < 9:
        total, source = _by_name(record), "its name and dtype suggest"
    if total is None:
        return
    share = total / ranks
    least, most = _kept(state, record, of_files=checkpoint is not None)
    factor = phases.weights_gb / share
    whole = ranks > 1 and 0.8 * most < phases.weights_gb / total < 1.25 * most
    if whole or not 0.6 * least < factor < 1.7 * most:
        told = (
            f"about the whole {total * most:.1f} GiB on every card"
            if whole
            else f"{factor:.1f} times the {share:.1f} GiB of an even share"
        )
        yield Finding(
            code="parallel_mismatch" if ranks > 1 else "size_mismatch",
            text=f"{phases.weights_gb:g} {phases.weights_unit} a worker is {told} ({source} "
            f"{total:.1f} GiB, {ranks} {'ranks' if ranks > 1 else 'rank'})",
            evidence=(*lines, *((checkpoint.moment.line,) if checkpoint else ())),
            next_step="Is it per card or the total, is the stated parallel degree the real one, is "
            "the dtype the checkpoint's? `coldload check MODEL` counts bytes by dtype.",
        )


def _kept(state: State, record: ColdStart, *, of_files: bool) -> tuple[float, float]:
    """The least and the most of its even share that a worker holds, 1 being all of it. With data
    parallel engines, experts are spread over those too. What is quantised while it is loaded
    shrinks, if the figure is that of the files: whether it was can be told by the line on it."""
    engines = max(record.data_parallel_size or 1, len(record.dp_engines))
    least = 1.0 / engines
    if not of_files:
        return least, 1.0
    made = made_while_loading(record.quantization)
    surely = state.one("online_quantisation") is not None
    return least * made, made if surely else 1.0


def made_while_loading(method: str | None) -> float:
    """What a method that quantises 16 bits while it loads leaves of them; 1 for other methods."""
    return (
        0.5
        if _MAKES_EIGHT.match(method or "")
        else 0.25
        if _MAKES_FOUR.match(method or "")
        else 1.0
    )


def _by_name(record: ColdStart) -> float | None:
    """GiB of the parameters that a model's name promises (`llama-7b`), None without such a name.
    A mixture (`8x7b`, `30b-a3b`) is passed over: its parts are shared."""
    name = (record.model or "").rstrip("/").split("/")[-1].lower()
    found = re.search(r"(?<![\dx.a-z])(\d+(?:\.\d+)?)b(?![a-z0-9])", name)
    bits = _BITS.get(record.dtype or "")
    if found is None or bits is None or re.search(r"\dx\d|a\d+b|moe", name):
        return None
    method = f"{record.quantization or ''} {name}"
    bits = 4 if _FOUR.search(method) else 8 if _EIGHT.search(method) else bits
    return float(found[1]) * 1e9 * bits / 8 / 2**30


def uneven(state: State, record: ColdStart, times: Timeline) -> Iterator[Finding]:
    held = record.phases.weights_gb_by_worker
    if (record.pipeline_parallel_size or 1) > 1 or len(held) < 2 or not max(held.values()):
        return
    least, most = min(held.values()), max(held.values())
    if least < 0.9 * most:
        yield Finding(
            code="uneven_workers",
            text=f"workers hold from {least:g} to {most:g} {record.phases.weights_unit} although "
            "nothing says that the model is split into pipeline stages",
            evidence=tuple(event.moment.line for event in sizes(state).values()),
            next_step="Ranks of one tensor parallel group hold equal shares: look for memory that "
            "another process took or freed, or for an uneven expert split.",
        )
