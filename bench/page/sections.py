"""What a report says of each run, as values: HTML and Markdown are two ways to set them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from bench.advice.company import flags
from bench.advice.findings import advise, saving_words
from bench.page.facts import Facts, host_facts, method_facts
from bench.page.tables import Table, tables
from bench.page.terminal import headline
from bench.pictures.album import Album, albums
from bench.progress import Progress
from bench.record.records import Run
from bench.record.summary import rows
from bench.words.answer import Answer, answer
from bench.words.findings import findings, warnings
from bench.words.parts import told
from bench.words.phase_findings import phase_findings
from loaders.checkpoint.text import count, printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A piece of advice in words."""

    title: str
    saving: str
    seen: str
    do: tuple[str, ...]
    cost: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """All of one run, in the order in which it is told. Texts hold what strangers named, made
    printable but not escaped for any format."""

    name: str
    path: str
    eyebrow: str
    answer: Answer
    company: tuple[str, ...]
    advice: tuple[Told, ...]
    pictures: Album
    tables: tuple[Table, ...]
    findings: tuple[str, ...]
    warnings: tuple[str, ...]
    host: Facts
    method: Facts
    counts: str


UNTOLD = Answer(headline="The answer couldn't be told: see the notes", lead=(), tiles=())


def sections(
    runs: Sequence[Run], progress: Progress = lambda done, total: None
) -> tuple[list[Section], Album]:
    """A section for each run, and the pictures that need several. `progress` is told of kinds of
    pictures drawn, which is what takes time."""
    each, across, lost = albums(runs, progress)
    found = [_section(*one) for one in zip(runs, each, lost, strict=True)]
    return found, across


def _section(run: Run, pictures: Album, lost: list[str]) -> Section:
    """`lost` names the parts that couldn't be told, the pictures' included."""
    made = rows(run)
    eyebrow = headline(run).removeprefix("coldload").lstrip(": ")
    found = told((("the answer", lambda: [answer(run)]),), lost)
    company = told((("who else was at work", lambda: flags(run)),), lost)
    advice = told((("the advice", lambda: _advice(run)),), lost)
    shown = told((("the tables", lambda: tables(run)),), lost)
    sentences = [*findings(run, made, lost), *phase_findings(run, lost)]
    doubts = warnings(run, made, lost)
    host = told((("the host", lambda: host_facts(run)),), lost)
    method = told((("the method", lambda: method_facts(run)),), lost)
    return Section(
        name=printable(run.path.parent.name or str(run.path)),
        path=printable(str(run.path)),
        eyebrow=printable("; ".join(filter(None, [eyebrow, _started(run)]))),
        answer=found[0] if found else UNTOLD,
        company=tuple(company),
        advice=tuple(advice),
        pictures=pictures,
        tables=tuple(shown),
        findings=tuple(sentences),
        warnings=(*doubts, *lost),
        host=host,
        method=method,
        counts=_counts(run),
    )


def _advice(run: Run) -> list[Told]:
    return [
        Told(
            title=one.title,
            saving=saving_words(one.saving),
            seen=one.seen,
            do=one.do,
            cost=one.cost,
        )
        for one in advise(run)
    ]


def _started(run: Run) -> str:
    """`2026-11-30 14:14 UTC`; as it stands where it is no time."""
    text = str((run.plan or {}).get("started") or "")
    try:
        return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return text


def _counts(run: Run) -> str:
    statuses = Counter(sample.status for sample in run.settled())
    parts = [f"{number} {status}" for status, number in sorted(statuses.items())]
    said = f"{count(len(run.settled()), 'sample')}: {', '.join(parts)}."
    if run.broken:
        said += f" {count(len(run.broken), 'broken line')} passed over."
    if run.cut:
        said += " The last line was cut off."
    if run.doubts:
        said += f" {count(len(run.doubts), 'value')} that didn't fit taken as unknown."
    missing = sum(len(passes) for passes in run.missing().values())
    return said + (f" {count(missing, 'planned sample')} missing." if missing else "")
