"""A part of a report that fails hides none of the others: in the terminal, on the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.cli import main
from bench.page.terminal import render
from bench.words.parts import told
from tests.tiny_records import write_run
from tests.tiny_report import golden_samples, made_run

SAID = "couldn't be told from these records (ZeroDivisionError: division by zero); the rest stands"

PARTS = [
    ("bench.words.findings.winners", "who wins"),
    ("bench.words.findings.ceilings", "the host's limits"),
    ("bench.words.findings.failures", "failures"),
    ("bench.words.phase_findings.slices", "slicing"),
    ("bench.words.answer.answer", "the answer"),
    ("bench.page.terminal.limit", "the tables of reading"),
    ("bench.page.terminal.title_of", "the ceilings"),
    ("bench.page.terminal.others_at_work", "who else was at work"),
    ("bench.page.terminal.first_words", "the advice"),
]
ON_THE_PAGE = [
    ("bench.page.sections.answer", "the answer"),
    ("bench.page.sections.advise", "the advice"),
    ("bench.page.sections.tables", "the tables"),
    ("bench.page.sections.flags", "who else was at work"),
    ("bench.page.sections.host_facts", "the host"),
    ("bench.page.sections.method_facts", "the method"),
    ("bench.pictures.album.rate_picture", "the pictures of rates"),
    ("bench.pictures.album.stages_picture", "the pictures of stages"),
]


def broken(*args: object, **more: object) -> None:
    raise ZeroDivisionError("division by zero")


def test_what_fails_is_named_with_why_and_the_others_stand() -> None:
    lost: list[str] = []
    steps: list[int] = []
    parts = (("one", lambda: [1, 2]), ("two", lambda: [1 // 0]), ("three", lambda: [3]))
    assert told(parts, lost, lambda: steps.append(1)) == [1, 2, 3]
    assert len(steps) == 3
    (said,) = lost
    assert said.startswith("two couldn't be told from these records (ZeroDivisionError: ")


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_in_the_terminal(monkeypatch: pytest.MonkeyPatch, name: str, part: str) -> None:
    run = made_run(*golden_samples())
    before = render(run, width=10_000).splitlines()
    monkeypatch.setattr(name, broken)
    after = render(run, width=10_000).splitlines()
    assert any(line.startswith(f"Note: {part} {SAID}") for line in after)
    assert len(set(before) - set(after)) < len(before) / 2
    assert before[0] == after[0]
    assert before[-1] == after[-1]


@pytest.mark.parametrize(("name", "part"), ON_THE_PAGE)
def test_on_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, part: str) -> None:
    run = write_run(tmp_path / "run", golden_samples())
    monkeypatch.setattr(name, broken)
    done = CliRunner().invoke(main, ["report", str(run), "-o", str(tmp_path / "r.md")])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "r.md").read_text()
    assert f"{part} couldn't be told from these records" in text
    for head in ("### What was found", "### What to be careful about"):
        assert head in text
