"""The table in the terminal: rows of a run, its ceilings, and the sentences under them.

Reads records only, so that a run can be shown again at any time. A column is a row of data.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bench.advice.company import others_at_work
from bench.advice.findings import first_words
from bench.record.records import Run, Sample, measured
from bench.record.stats import Spread, spread
from bench.record.summary import (
    STAGES,
    ByPass,
    Group,
    Row,
    ceilings,
    groups,
    rate_of,
    rows,
    simulated,
    title_of,
)
from bench.sizes import format_size
from bench.words.answer import answer_words
from bench.words.assembly_table import assembly_tables, in_assembly_tables
from bench.words.findings import findings, warnings
from bench.words.limits_seen import limit
from bench.words.parts import told
from bench.words.phase_findings import phase_findings
from loaders.checkpoint.text import printable

PHASE_TITLES = {
    "host_to_device": "host memory -> device",
    "slice": "full tensors -> a rank's shards",
    "quantise": "bf16 -> int8 or fp8 with scales",
    "layout": "quantised weights -> the device's layout",
    "assemble": "checkpoint -> the rank's parameters",
    "w8a8": "checkpoint -> quantised parameters",
    "ranks": "several ranks on one storage",
    "stage": "copied to another storage first",
}
PLAIN_WIDTH = 180
NARROWEST = 80
LIMIT_WIDTH = 20
"""What is kept free for the last column, whose words may wrap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A heading, what it shows of a row, and whether figures stand on the right. Where the
    terminal is too narrow for all, those with the highest `spare` are left out first; 0 never."""

    title: str
    show: Callable[[Row], str]
    right: bool = True
    spare: int = 0


def _stage(name: str) -> Callable[[Row], str]:
    return lambda row: f"{row.seconds[name]:.2f}" if name in row.seconds else ""


def _optional(text: str, value: float | None) -> str:
    return "" if value is None else text.format(value)


def _range(found: Spread) -> str:
    return f"{found.low:.2f}-{found.high:.2f}" if found.n > 1 else "1 pass"


COLUMNS: tuple[Column, ...] = (
    Column(title="loader", show=lambda row: row.title, right=False),
    Column(title="thr", show=lambda row: _optional("{}", row.threads), spare=5),
    Column(title="GB/s", show=lambda row: f"{row.rate.median:.2f}"),
    Column(title="range", show=lambda row: _range(row.rate), spare=1),
    Column(
        title="% ceil",
        show=lambda row: _optional("{:.0f}", row.percent.median if row.percent else None),
    ),
    Column(title="open s", show=_stage("open"), spare=3),
    Column(title="alloc s", show=_stage("allocate"), spare=6),
    Column(title="read s", show=_stage("read"), spare=2),
    Column(title="consume s", show=_stage("consume"), spare=7),
    Column(title="CPU s/GB", show=lambda row: _optional("{:.2f}", row.cpu_per_gb), spare=4),
    Column(title="minor flt", show=lambda row: _optional("{:.0f}", row.minor_faults), spare=10),
    Column(title="major flt", show=lambda row: _optional("{:.0f}", row.major_faults), spare=8),
    Column(title="peak MiB", show=lambda row: _optional("{:.0f}", _mib(row.peak_bytes)), spare=9),
    Column(title="was", show=lambda row: row.state, right=False),
)


def _mib(nbytes: float | None) -> float | None:
    return None if nbytes is None else nbytes / 2**20


def render(run: Run, *, width: int | None = None, colour: bool = False) -> str:
    """The whole report as text: `width` columns (PLAIN_WIDTH for None), colours if asked. Tables,
    the answer, what was found, what is doubtful, what to do."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=max(width or PLAIN_WIDTH, NARROWEST),
        force_terminal=colour,
        no_color=not colour,
        highlight=False,
        emoji=False,
    )
    made = rows(run)
    lost: list[str] = []
    console.print(_safe(headline(run)))
    for table in told(
        (
            ("the tables of reading", lambda: _reading(run, made, console.width)),
            ("the tables of later phases", lambda: _later(run)),
            ("the ceilings", lambda: _ceilings(run)),
        ),
        lost,
    ):
        console.print()
        for part in table:
            console.print(part, soft_wrap=isinstance(part, Text) and len(table) > 1)  # a title
    for sentences in _sentences(run, made, lost):
        if sentences:
            console.print()
        for sentence in sentences:
            console.print(_safe(sentence))
    console.print()
    console.print(_safe(f"Records: {run.path}. What is missing: coldload runs {run.path.parent}"))
    text = out.getvalue()
    # Cells are padded to the right; in plain text, which is pasted elsewhere, nobody wants that.
    return text if colour else "".join(f"{line.rstrip()}\n" for line in text.splitlines())


Shown = Sequence[Table | Text]
"""A table, with its title before it or what it leaves out after it."""


def _reading(run: Run, made: Sequence[Row], width: int) -> list[Shown]:
    tops = ceilings(run)
    columns = fitting(made, width)
    found: list[Shown] = [
        [_table(_title(run, group), columns, members, tops, run.cores)]
        for group, members in groups(made).items()
    ]
    if len(columns) < len(COLUMNS):
        absent = ", ".join(column.title for column in COLUMNS if column not in columns)
        found.append([Text(f"(not shown in {width} columns: {absent})")])
    return found


def _later(run: Run) -> list[Shown]:
    made: list[Shown] = [
        [Text(phase_title(group), style="italic"), phase_table(members)]
        for phase in later_phases(run)
        for group, members in groups(rows(run, phase)).items()
        if not in_assembly_tables(group)
    ]
    for title, table in assembly_tables(run):
        made.append([Text(_safe(title), style="italic"), table])
    return made


def _ceilings(run: Run) -> list[Shown]:
    table = _ceiling_table(run)
    return [] if table is None else [[table]]


def _sentences(run: Run, made: Sequence[Row], lost: list[str]) -> list[list[str]]:
    """Blocks under the tables, the answer first: in the end stands what to do, which is what is
    still seen when all has scrolled by."""
    said = told((("the answer", lambda: answer_words(run)),), lost)
    found = [*findings(run, made, lost), *phase_findings(run, lost)]
    to_do = told((("the advice", lambda: first_words(run)),), lost)
    company = told((("who else was at work", lambda: others_at_work(run)),), lost)
    doubts = [*company, *warnings(run, made, lost), *lost]
    return [said, found, [f"Note: {doubt}" for doubt in doubts], to_do]


def _safe(text: str) -> str:
    """Names and reasons come from strangers: neither markup nor what moves the cursor."""
    return escape(printable(text))


def fitting(made: Sequence[Row], width: int) -> list[Column]:
    """The columns that can be shown whole in `width` letters: a cut figure is a wrong one."""
    chosen = list(COLUMNS)
    widths = {
        column.title: max(
            [len(column.title), *(cell_len(printable(column.show(row))) for row in made)]
        )
        for column in COLUMNS
    }
    while sum(widths[column.title] + 2 for column in chosen) + LIMIT_WIDTH > width:
        least = max(chosen, key=lambda column: column.spare)
        if least.spare == 0:
            break
        chosen.remove(least)
    return chosen


def headline(run: Run) -> str:
    """What was measured, on what."""
    plan, host = run.plan or {}, run.host or {}
    smoke = " (smoke: these figures mean nothing)" if plan.get("smoke") else ""
    size = format_size(int(plan["size"])) if "size" in plan else "?"
    machine = host.get("host", {})
    cpu = machine.get("cpu", {}).get("model") or "unknown CPU"
    where = ", ".join(
        f"{label}: {facts.get('fs_type')} on {(facts.get('block') or {}).get('disk') or 'no disk'}"
        for label, facts in machine.get("storage", {}).items()
    )
    stores = [f"{label}: a store ({scheme})" for label, scheme in host.get("stores", {}).items()]
    where = "; ".join(filter(None, [where, *stores]))
    return (
        f"coldload{smoke}: {plan.get('model', '?')}, {size}, {plan.get('dtype', '?')}; "
        f"{host.get('cores', '?')} cores of {cpu}; {where}"
    )


def _title(run: Run, group: Group) -> str:
    words = (run.host or {}).get("coldness", {}).get(group.storage, "")
    remote = group.storage in (run.host or {}).get("stores", {})
    cache = {
        "cold": words or "cold",
        "warm": "warm: in the page cache",
        "none": f"remote: {words}" if remote else "no file is read",
    }
    memory = {
        "mapped": "pages of the file",
        "borrowed": "a reused buffer",
        "owned": "memory of its own",
        "device": "the device's memory",
    }
    where = group.storage or "memory"
    state = cache.get(group.cache) or f"{group.cache} of the files in the page cache"
    return f"{where}, {state} -> {memory.get(group.ownership, 'elsewhere')} ({group.ownership})"


def _table(
    title: str,
    columns: Sequence[Column],
    members: Sequence[Row],
    tops: Mapping[Group, ByPass],
    cores: int,
) -> Table:
    table = Table(title=_safe(title), title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column.title, justify="right" if column.right else "left", no_wrap=True)
    table.add_column("limited by")
    for row in members:
        shown = [_safe(column.show(row)) for column in columns]
        table.add_row(*shown, _safe(limit(row, tops, cores)))
    return table


def later_phases(run: Run) -> list[str]:
    """The phases after reading that the run has samples of, in the order of their first one."""
    found = dict.fromkeys(sample.phase for sample in measured(run.samples))
    return [phase for phase in found if phase not in {"ceiling", "disk_to_host"}]


def phase_title(group: Group) -> str:
    """What a phase's contestants did, and where; printable, not escaped for markup."""
    where = [PHASE_TITLES.get(group.phase, group.phase)]
    if group.phase == "host_to_device" and group.device == "cpu":
        where = ["host memory -> a second buffer of it (no accelerator: a memory copy)"]
    if simulated(group):
        where += ["no figures of hardware"]
    where += [group.device, group.layout]
    where += [group.subject] if group.subject else []
    if group.storage is not None:
        where += [group.storage, group.cache]
    return printable(", ".join(where))


def phase_table(members: Sequence[Row]) -> Table:
    """A phase's contestants: rate, share of the phase's own ceiling, and the seconds of each stage
    that any of them has."""
    table = Table(box=None, pad_edge=False)
    stages = [name for name in STAGES if any(row.seconds.get(name) for row in members)]
    for title in ("way", "thr", "GB/s", "range", "% ceil", *[f"{name} s" for name in stages]):
        table.add_column(title, justify="left" if title == "way" else "right", no_wrap=True)
    for row in members:
        table.add_row(
            _safe(row.title),
            _optional("{}", row.threads),
            f"{row.rate.median:.2f}",
            _range(row.rate),
            _optional("{:.0f}", row.percent.median if row.percent else None),
            *[_optional("{:.3f}", row.seconds.get(name)) for name in stages],
        )
    return table


def _ceiling_table(run: Run) -> Table | None:
    by_case: dict[str, list[Sample]] = {}
    for sample in measured(run.samples):
        if sample.phase == "ceiling" and rate_of(sample) is not None:
            by_case.setdefault(sample.case, []).append(sample)
    if not by_case:
        return None
    table = Table(title="Ceilings", title_justify="left", box=None, pad_edge=False)
    for title in ("ceiling", "storage", "cache", "GB/s", "range", "how"):
        table.add_column(title, justify="right" if title in {"GB/s", "range"} else "left")
    for samples in sorted(by_case.values(), key=lambda found: _ceiling_order(found[0])):
        rates = [rate for sample in samples if (rate := rate_of(sample)) is not None]
        found = spread(rates)
        assert found is not None
        first = samples[0]
        table.add_row(
            _safe(title_of(first)),
            _safe(first.storage.label if first.storage else "memory"),
            first.cache.state if first.cache.state != "none" else first.cache.requested,
            f"{found.median:.2f}",
            _range(found),
            _safe(_how(first)),
        )
    return table


def _ceiling_order(sample: Sample) -> tuple[str, str, str]:
    """Storages first, cold before warm, then the host's memory."""
    label = sample.storage.label if sample.storage else "~"
    return label, sample.cache.requested, title_of(sample)


def _how(sample: Sample) -> str:
    details = sample.details
    parts = []
    if "direct" in details:
        parts.append("O_DIRECT" if details["direct"] else "through the page cache")
    if "block" in details:
        parts.append(f"{details['threads']} x {format_size(details['block'])}")
    if "pages" in details:
        huge = details.get("huge_kb")
        found = "" if huge is None else f" ({huge / 1024:.0f} MiB of them huge)"
        parts.append(f"{details['pages']} pages{found}")
    if "engine" in details:
        parts.append(f"{details['engine']}, not consumed")
    if "fell_back" in details:
        parts.append(f"fell back: {'; '.join(details['fell_back'])}")
    return ", ".join(parts)
