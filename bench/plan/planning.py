"""What `coldload plan` says, as one JSON-able document: plans, KV pool, "per card or total?"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.plan.kvpool import Pool, element_bytes, kv_layers, layer_block_bytes, pool, pool_bytes
from bench.plan.percard import per_card
from loaders.checkpoint.manifest import Checkpoint
from loaders.slicing.build import plan_rank
from loaders.slicing.engines import Engine
from loaders.slicing.errors import PlanError
from loaders.slicing.match import Match, matches
from loaders.slicing.model import Model, model_of
from loaders.slicing.placement import Placement
from loaders.slicing.plan import Degrees, RankPlan, byte_run
from loaders.slicing.rules import Table
from loaders.slicing.sizes import RankBytes, all_ranks, count
from loaders.slicing.whole import Whole, whole

GIB = 1 << 30
_MOST_MATCHES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What sizes the KV pool. Bytes; `total`, `peak`, `swap` and `length` are None if not given."""

    total: int | None = None
    utilisation: float = 0.9
    peak: int | None = None
    swap: int | None = None
    block_size: int = 16
    length: int | None = None
    kv_dtype: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What was asked. `weights` are bytes that an engine printed; `stated` whether the degrees were
    given, or are the default of one rank."""

    degrees: Degrees
    engine: Engine
    placement: Placement = "linear"
    stated: bool = False
    memory: Memory = Memory()
    weights: int | None = None
    rank: int | None = None
    table: Table | None = None


def answer(checkpoint: Checkpoint, question: Question) -> dict[str, Any]:
    """The document, without `ok` and `error`. PlanError where the model can't be divided so."""
    model = model_of(checkpoint, question.table)
    counted = count(model, checkpoint)
    engine, placement, degrees = question.engine, question.placement, question.degrees
    ranks = all_ranks(counted, degrees, placement=placement, remainder=engine.remainder)
    loaded = counted.all_bytes - counted.skipped_bytes
    kept = sum(one.kept for one in ranks)
    notes = [*model.notes, *_notes(model, question)]
    pooled, why = _kv(model, ranks, question)
    document: dict[str, Any] = {
        "engine": engine.name,
        "rules": model.table.name,
        "degrees": {**asdict(degrees), "world": degrees.world},
        "placement": placement if degrees.ep > 1 else None,
        "file_bytes": checkpoint.file_bytes,
        "tensor_bytes": counted.all_bytes,
        "skipped": _skipped(checkpoint, model),
        "kept_bytes": kept,
        "replication": kept / loaded if loaded else None,
        "ranks": [_rank(one, engine) for one in ranks],
        "assembly": _assembly(whole(model, checkpoint)),
        "kv": _kv_document(pooled, question.memory),
        "weights": None,
        "matches": [],
        "notes": [*notes, *why],
    }
    if question.weights is not None:
        found = matches(counted, question.weights, placement=placement, remainder=engine.remainder)
        stated = ranks if question.stated else None
        document["weights"] = per_card(question.weights, counted, stated, found, placement, engine)
        document["matches"] = [_match(one) for one in found[:_MOST_MATCHES]]
    if question.rank is not None:
        plan = plan_rank(
            model, degrees, question.rank, placement=placement, remainder=engine.remainder
        )
        document["parameters"] = _parameters(plan, checkpoint)
    return document


def _notes(model: Model, question: Question) -> list[str]:
    """What the engine would do otherwise, or not at all."""
    engine, degrees = question.engine, question.degrees
    found: list[str] = []
    if question.placement == "round_robin" and degrees.ep > 1:
        if not engine.round_robin:
            found.append(f"{engine.name} places experts linearly only (round-robin since 0.11)")
        elif (model.facts.expert_groups or 1) <= 1:
            found.append(
                "an engine falls back to linear placement here: round-robin needs expert groups "
                "(n_group above 1 in config.json)"
            )
    if degrees.ep > 1 and degrees.ep > model.experts:
        found.append(f"{degrees.ep} ranks, {model.experts} experts a layer: some ranks have none")
    if degrees.ep > 1:
        found.append(
            "EPLB isn't modelled: with redundant experts a rank holds (experts + redundant) / ep "
            "of a layer, and there is no EP filter"
        )
    if degrees.ep > 1 and not engine.ep_filter:
        found.append(f"{engine.name} has no EP filter: every rank reads all experts (since 0.18)")
    return found


def _assembly(found: Whole) -> dict[str, Any]:
    draft = found.draft
    return {
        "unfilled": [asdict(one) for one in found.unfilled],
        "surplus": dict(found.surplus),
        "tied": list(found.tied),
        "draft": None
        if draft is None
        else {"layers": list(draft.layers), "tensors": len(draft.tensors), "bytes": draft.nbytes},
    }


def _skipped(checkpoint: Checkpoint, model: Model) -> dict[str, int]:
    """Bytes that no rank keeps, by reason."""
    found: dict[str, int] = {}
    for spec in checkpoint.tensors:
        if (reason := model.skipped.get(spec.name)) is not None:
            found[reason] = found.get(reason, 0) + spec.nbytes
    return found


def _rank(one: RankBytes, engine: Engine) -> dict[str, Any]:
    place = one.place
    return {
        "rank": place.rank,
        "dp_rank": place.dp,
        "pp_rank": place.pp,
        "tp_rank": place.tp,
        "ep_rank": place.ep if one.experts is not None else None,
        "layers": list(one.layers),
        "experts": one.experts,
        "kept_bytes": one.kept,
        "padding_bytes": one.padding,
        "after_load_bytes": one.after_load,
        "weights_bytes": one.weights,
        "read_bytes": {
            "all": one.read_all,
            "slice": one.kept,
            "slice_pages": one.touched,
            "ep_filter": one.read_filtered if engine.ep_filter else one.read_all,
        },
        "by_class": one.by_kind,
    }


def _kv(
    model: Model, ranks: Sequence[RankBytes], question: Question
) -> tuple[Pool | None, list[str]]:
    """The pool of the worker that has the fewest blocks (an engine takes the least of all), and
    what was assumed."""
    memory, facts, degrees = question.memory, model.facts, question.degrees
    found: list[Pool] = []
    notes: list[str] = []
    try:
        element = element_bytes(memory.kv_dtype, facts.dtype)
        a_layer = layer_block_bytes(facts, degrees.tp, memory.block_size, element)
    except PlanError as error:
        return None, [f"no KV pool: {error}"]
    for one in ranks:
        layers = kv_layers(facts, one.layers)
        if not layers:
            continue
        peak = one.weights if memory.peak is None else memory.peak
        available = (
            None
            if memory.total is None
            else pool_bytes(question.engine, memory.total, memory.utilisation, peak)
        )
        swap = memory.swap
        if swap is None and question.engine.kv == "v0":
            swap = 4 * GIB  # vLLM's default of --swap-space, while it had one
        found.append(
            pool(
                question.engine,
                block_bytes=a_layer * layers,
                block_size=memory.block_size,
                available=available,
                swap=swap,
                length=memory.length or facts.max_length,
            )
        )
    if not found:
        return None, ["no KV pool: no layer keeps keys and values"]
    if memory.total is not None and memory.peak is None:
        notes.append(
            "the KV pool is an upper bound: only the weights were taken off; pass --peak (weights, "
            "activations and graphs, as the engine's profiling says) for the engine's figure"
        )
    if facts.layer_types and len(set(facts.layer_types)) > 1:
        notes.append(
            "layers of several kinds: the engine groups them; these blocks are one group's"
        )
    least = min(found, key=lambda one: (one.num_gpu_blocks or 0, -one.block_bytes))
    if least.pool_bytes is not None and least.pool_bytes < least.block_bytes:
        notes.append(
            f"no room for a KV block: {least.pool_bytes:,} bytes are left of the device's share, a "
            f"block takes {least.block_bytes:,}; raise tp, or quantise the weights"
        )
    return least, notes


def _kv_document(found: Pool | None, memory: Memory) -> dict[str, Any]:
    fields = ("block_bytes", "pool_bytes", "num_gpu_blocks", "num_cpu_blocks", "tokens")
    values = {name: None if found is None else getattr(found, name) for name in fields}
    return {
        **values,
        "block_size": memory.block_size,
        "concurrency": None if found is None else found.concurrency,
    }


def _match(one: Match) -> dict[str, Any]:
    return {
        **asdict(one.degrees),
        "world": one.degrees.world,
        "predicted_bytes": one.predicted,
        "least_bytes": one.least,
        "most_bytes": one.most,
        "deviation": one.deviation,
    }


def _parameters(plan: RankPlan, checkpoint: Checkpoint) -> list[dict[str, Any]]:
    specs = {spec.name: spec for spec in checkpoint.tensors}
    found: list[dict[str, Any]] = []
    for parameter in plan.parameters:
        pieces: list[dict[str, Any]] = []
        for piece in parameter.pieces:
            spec = specs[piece.tensor]
            run = None if spec.offset is None else asdict(byte_run(spec, piece))
            pieces.append({**asdict(piece), "file_range": run})
        found.append(
            {
                "name": parameter.name,
                "class": parameter.kind,
                "dtype": parameter.dtype,
                "shape": list(parameter.shape),
                "padding": parameter.padding,
                "pieces": pieces,
            }
        )
    return found
