"""Slicing: full tensors -> this rank's parameters, in memory and while reading."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, zip_longest
from typing import Any

import torch

from bench.ground.prepare import Prepared
from bench.measuring.channel import Channel
from bench.measuring.child import Stopwatch
from bench.measuring.verify import SHOWN
from bench.measuring.work import Go, Outcome, no_faults, perform
from bench.phases.contract import Asked, Phase
from bench.phases.task import begin
from bench.phases.tensors import ENOUGH, differing, load, picked_bytes
from bench.record.cases import Case
from bench.settings import Settings
from loaders.checkpoint.dtypes import torch_dtype
from loaders.checkpoint.manifest import Checkpoint
from loaders.io.buffers import allocate
from loaders.io.sources import summed
from loaders.slicing.build import plan_rank
from loaders.slicing.copies import Copy
from loaders.slicing.errors import PlanError
from loaders.slicing.execute import Raw, carry_out, cut, cut_stock, raw
from loaders.slicing.fetch import GAP, fetches
from loaders.slicing.model import model_of
from loaders.slicing.plan import Degrees, Parameter
from loaders.slicing.sliced_read import fetched_bytes, read_sliced
from loaders.transfer.mapping import mapped_tensors

RULES = ("column", "row", "vocab", "experts")
IN_MEMORY = ("copy", "stock", "ours")
FROM_FILES = ("stock", "read-all", "read-slices")
EVERYTHING = 1 << 62
"""Bytes between two ranges that are rather read than skipped: all there can be."""

READERS = 4
"""Threads that read slices, at least: they wait more than they copy."""


def cases(asked: Asked) -> list[Case]:
    """Each rule in memory, for all ranks, and all rules together from the files, for one rank,
    cold."""
    settings = asked.settings
    layout = layout_of(settings)
    in_memory = [
        Case(phase="slice", loader=way, options={"rule": rule}, layout=layout)
        for rule in RULES
        for way in IN_MEMORY
    ]
    from_files = [
        Case(phase="slice", loader=way, cache="cold", storage=label, layout=layout)
        for label in asked.labels
        for way in FROM_FILES
        if "cold" in settings.caches
    ]
    return in_memory + from_files


def layout_of(settings: Settings) -> str:
    return f"tp{settings.tp}" + ("-ep" if settings.ep else "")


def degrees_of(layout: str) -> Degrees:
    tp = int(layout.removesuffix("-ep").removeprefix("tp"))
    return Degrees(tp=tp, ep=tp if layout.endswith("-ep") else 1)


def planned(checkpoint: Checkpoint, layout: str) -> list[Parameter]:
    """What the middle rank keeps: the first one's cuts all begin at 0, the last one's may be
    short. PlanError."""
    degrees = degrees_of(layout)
    return list(plan_rank(model_of(checkpoint), degrees, degrees.tp // 2).parameters)


def all_ranks(checkpoint: Checkpoint, layout: str, rule: str) -> list[Parameter]:
    """What every rank keeps of what is cut by the rule, parameter by parameter: one rank's part
    alone would be over before a clock could tell ways apart."""
    degrees = degrees_of(layout)
    model = model_of(checkpoint)
    by_rank = [
        [one for one in plan_rank(model, degrees, rank).parameters if rule_of(one) == rule]
        for rank in range(degrees.world)
    ]
    return [one for same in zip_longest(*by_rank) for one in same if one is not None]


def rule_of(parameter: Parameter) -> str:
    """Which of RULES a parameter is cut by; `whole` for what every rank keeps."""
    if parameter.kind in {"experts"}:
        return "experts"
    if parameter.kind in {"embedding", "head"}:
        return "vocab"
    if any(piece.dim > 0 for piece in parameter.pieces):
        return "row"
    return "column" if len(parameter.shape) > 1 else "whole"


def enough(parameters: list[Parameter], limit: int) -> list[Parameter]:
    """The first of them, up to `limit` bytes together; one at least."""
    found: list[Parameter] = []
    total = 0
    for parameter in parameters:
        total += parameter.nbytes
        if found and total > limit:
            break
        found.append(parameter)
    return found


def refuses(case: Case, ready: Prepared) -> str | None:
    try:
        mine = planned(ready.checkpoint, case.layout)
    except PlanError as error:
        return str(error)
    rule = case.options.get("rule")
    if rule is not None and not any(rule_of(one) == rule for one in mine):
        return f"nothing in this model is cut by the rule {rule}"
    return None


def memory_bytes(case: Case, ready: Prepared) -> int:
    if case.storage is None:
        return 3 * min(ENOUGH, ready.checkpoint.tensor_bytes)
    kept = sum(one.nbytes for one in planned(ready.checkpoint, case.layout))
    return kept + (ready.checkpoint.tensor_bytes if case.loader == "read-all" else 0)


def measure(channel: Channel, **given: Any) -> None:
    """One sample of slicing."""
    task = begin(given)
    checkpoint = task.checkpoint
    if "rule" in task.options:
        parameters = enough(all_ranks(checkpoint, task.layout, task.options["rule"]), ENOUGH)
        in_memory(channel, task.way, checkpoint, parameters, task.cores)
    else:
        from_files(channel, task.way, checkpoint, planned(checkpoint, task.layout), task.cores)


def targets_of(parameters: list[Parameter], cores: int) -> list[torch.Tensor]:
    """Memory for the parameters, touched."""
    found = fresh_targets(parameters)
    for target in found:
        target.zero_()
    return found


def fresh_targets(parameters: list[Parameter]) -> list[torch.Tensor]:
    """Memory for the parameters, of which no page is there yet, each from a page on."""
    found = []
    for parameter in parameters:
        memory = allocate(max(parameter.nbytes, 1)).view()[: parameter.nbytes]
        if parameter.nbytes:
            whole = torch.frombuffer(memory, dtype=torch.uint8)
            found.append(whole.view(torch_dtype(parameter.dtype)).view(parameter.shape))
        else:
            found.append(torch.empty(parameter.shape, dtype=torch_dtype(parameter.dtype)))
    return found


def in_memory(
    channel: Channel, way: str, checkpoint: Checkpoint, parameters: list[Parameter], cores: int
) -> None:
    """Sources and targets lie in touched memory when the clock starts."""
    names = {piece.tensor for parameter in parameters for piece in parameter.pieces}
    specs = [spec for spec in checkpoint.tensors if spec.name in names]
    sources = load(checkpoint, specs)
    targets = targets_of(parameters, cores)
    come_from = {name: raw(tensor) for name, tensor in sources.items()}
    into = [raw(target) for target in targets]
    bare = as_many_bytes(come_from, [len(one) for one in into])
    act: dict[str, Callable[[], None]] = {
        "copy": lambda: carry_out(bare, come_from, into, threads=cores),
        "stock": lambda: cut_stock(sources, parameters, targets),
        "ours": lambda: cut(sources, parameters, targets, threads=cores),
    }

    def work(go: Go, watch: Stopwatch) -> Outcome:
        go()
        act[way]()
        return Outcome(
            nbytes=sum(len(one) for one in into),
            ownership="owned",
            find_out=lambda: {"tensors": len(specs), "source_bytes": picked_bytes(specs)},
            prove=no_faults if way == "copy" else prove,
            unproved="a bare copy: no parameters come of it" if way == "copy" else None,
        )

    def prove() -> list[str]:
        return wrong(checkpoint, parameters, targets)

    perform(channel, work, Stopwatch((), rest="slice"))


def as_many_bytes(come_from: Mapping[str, Raw], sizes: Sequence[int]) -> list[Copy]:
    """Copies that fill targets of these sizes with the sources' bytes as they lie, one contiguous
    run after another: the memory copy that slicing is held against."""
    found: list[Copy] = []
    sources = cycle(come_from.items())
    name, left = "", 0
    for number, size in enumerate(sizes):
        done = 0
        while done < size:
            if not left:
                name, memory = next(sources)
                left = len(memory)
            length = min(size - done, left)
            start = len(come_from[name]) - left
            found.append(
                Copy(
                    tensor=name,
                    parameter=number,
                    source=start,
                    target=done,
                    length=length,
                    source_stride=length,
                    target_stride=length,
                    count=1,
                )
            )
            done, left = done + length, left - length
    return found


def from_files(
    channel: Channel, way: str, checkpoint: Checkpoint, parameters: list[Parameter], cores: int
) -> None:
    """All of the rank's parameters, into fresh memory: `stock` narrows views of a mapping and
    copies them, as engines do; the others read directly, everything or only what is kept."""
    gap = EVERYTHING if way == "read-all" else GAP
    threads = max(READERS, 2 * cores)

    def work(go: Go, watch: Stopwatch) -> Outcome:
        go()
        with watch.stamp("allocate"):
            targets = fresh_targets(parameters)
        notes: list[str] = []
        if way == "stock":
            with mapped_tensors(checkpoint) as mapped:
                cut_stock(dict(mapped), parameters, targets)
        else:
            into = [raw(target) for target in targets]
            told = read_sliced(checkpoint, parameters, into, threads=threads, gap=gap)
            notes = summed(told)
        return Outcome(
            nbytes=sum(parameter.nbytes for parameter in parameters),
            ownership="owned",
            notes=notes,
            find_out=lambda: {} if way == "stock" else fetched(checkpoint, parameters, gap),
            prove=lambda: wrong(checkpoint, parameters, targets),
        )

    perform(channel, work, Stopwatch(("allocate",), rest="slice"))


def fetched(checkpoint: Checkpoint, parameters: list[Parameter], gap: int) -> dict[str, Any]:
    """Bytes asked of the files and bytes kept, altogether and by rule."""
    by_rule: dict[str, dict[str, int]] = {}
    for rule in (*RULES, "whole"):
        mine = [one for one in parameters if rule_of(one) == rule]
        if mine:
            by_rule[rule] = {
                "fetched_bytes": fetched_bytes(fetches(checkpoint, mine, GAP)),
                "kept_bytes": sum(one.kept_bytes for one in mine),
            }
    return {
        "fetched_bytes": fetched_bytes(fetches(checkpoint, parameters, gap)),
        "kept_bytes": sum(one.kept_bytes for one in parameters),
        "by_rule": by_rule,
    }


def wrong(
    checkpoint: Checkpoint, parameters: list[Parameter], targets: Sequence[torch.Tensor]
) -> list[str]:
    """Parameters that aren't what narrow and copy make of the files' bytes, read once more."""
    specs = {spec.name: spec for spec in checkpoint.tensors}
    faults: list[str] = []
    for parameter, target in zip(parameters, targets, strict=True):
        names = dict.fromkeys(piece.tensor for piece in parameter.pieces)
        sources = load(checkpoint, [specs[name] for name in names])
        expected = torch.zeros_like(target)
        cut_stock(sources, [parameter], [expected])
        faults += differing([(parameter.name, target)], {parameter.name: expected})
        if len(faults) >= SHOWN:
            break
    return faults


SLICE = Phase(
    name="slice",
    target="bench.phases.slicing:measure",
    cases=cases,
    memory_bytes=memory_bytes,
    usual=lambda case: case.storage is not None and case.loader in {"stock", "read-slices"},
    refuses=refuses,
)
