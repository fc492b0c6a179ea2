"""What a report says of each run, as values: HTML and Markdown are two ways to set them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from bench.advice.company import flags
from bench.advice.findings import advise, saving_words
from bench.page.answer import Answer, answer
from bench.page.facts import Facts, host_facts, method_facts
from bench.page.tables import Table, tables
from bench.pictures.album import Album, albums
from bench.record.records import Run
from bench.record.summary import rows
from bench.words.findings import findings, warnings
from bench.words.phase_findings import phase_findings
from bench.words.report import headline
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


def sections(runs: Sequence[Run]) -> tuple[list[Section], Album]:
    """A section for each run, and the pictures that need several."""
    each, across = albums(runs)
    return [_section(run, pictures) for run, pictures in zip(runs, each, strict=True)], across


def _section(run: Run, pictures: Album) -> Section:
    made = rows(run)
    eyebrow = headline(run).removeprefix("coldload").lstrip(": ")
    return Section(
        name=printable(run.path.parent.name or str(run.path)),
        path=printable(str(run.path)),
        eyebrow=printable("; ".join(filter(None, [eyebrow, _started(run)]))),
        answer=answer(run),
        company=tuple(flags(run)),
        advice=tuple(
            Told(
                title=one.title,
                saving=saving_words(one.saving),
                seen=one.seen,
                do=one.do,
                cost=one.cost,
            )
            for one in advise(run)
        ),
        pictures=pictures,
        tables=tuple(tables(run)),
        findings=(*findings(run, made), *phase_findings(run)),
        warnings=tuple(warnings(run, made)),
        host=host_facts(run),
        method=method_facts(run),
        counts=_counts(run),
    )


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
    missing = sum(len(passes) for passes in run.missing().values())
    return said + (f" {count(missing, 'planned sample')} missing." if missing else "")
