"""The report: golden text, names from strangers, and its pure functions at their edges.

`python -m tests.tiny_report` writes the golden files anew.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from bench.page.terminal import COLUMNS, fitting, render
from bench.record.records import Run, Sample, Seconds, read_run
from bench.record.summary import Group, Row, groups, rate_of, ratio, rows, title_of
from bench.words import findings
from bench.words.limits_seen import limit
from tests.tiny_report import (
    GOLDEN,
    NET,
    NVME,
    ceiling,
    golden_report,
    load,
    made_run,
    unmeasured,
)

HERE = {"storage": None, "cache": "none"}
COLD_OWNED = Group(storage="nvme", cache="cold", ownership="owned")


def by_title(run: Run) -> dict[str, Row]:
    return {row.title: row for row in rows(run)}


# The golden run: two storages, cold and warm, and one of everything.


def test_the_golden_run_gives_the_golden_report() -> None:
    assert golden_report() == (GOLDEN / "report.txt").read_text()


def test_a_report_is_the_same_each_time() -> None:
    assert golden_report() == golden_report()


@pytest.mark.parametrize("width", [1, 80, 100, 120, 150, 170, 250])
def test_no_figure_is_ever_cut(width: int) -> None:
    """A narrow terminal gets fewer columns, and is told which."""
    text = golden_report(width)
    assert "…" not in text
    made = rows(read_run(GOLDEN / "run"))
    columns = fitting(made, max(width, 80))
    assert [column.title for column in columns][:2] == ["loader", "GB/s"] or len(columns) > 5
    absent = [column.title for column in COLUMNS if column not in columns]
    assert (f"columns: {', '.join(absent)})" in " ".join(text.split())) == bool(absent)
    if width >= 80:
        assert max(map(cell_len, text.splitlines())) <= width
    for row in made:
        assert f"{row.rate.median:.2f}" in text


def test_every_table_is_best_first_and_what_was_not_as_asked_comes_last() -> None:
    for members in groups(rows(read_run(GOLDEN / "run"))).values():
        rates = [row.rate.median for row in members if not row.apart]
        assert rates == sorted(rates, reverse=True)
        assert [row.apart for row in members] == sorted(row.apart for row in members)


def test_the_golden_run_names_all_that_is_doubtful() -> None:
    text = " ".join(golden_report().split())
    for said in (
        "size halved from",
        "example, cold on nvme: 120 % of its ceiling.",
        "asked cold, was mixed: safetensors-mmap;",
        "1 sample(s) were taken again",
        "FAILED pt (mmap=true), cold, pass 1: the child ended by SIGBUS",
        "skipped: npcache: reads npcache; this model is safetensors",
        "3 passes: a range, not an interval; --passes=8 gives one",
    ):
        assert f"Note: {said}" in text
    assert text.count("reads npcache") == 1  # once, though two passes say it


# Names come from strangers.

NASTY = "[red]\x1b[2J\x1b]0;title\x07\r\n\u202eevil[/red] :boom:"


def nasty_run() -> Run:
    sample = load(NASTY, 1.0, storage=replace(NVME, label="nvme"))
    failed = unmeasured("pt", "failed", NASTY, 2)
    skipped = unmeasured(NASTY, "skipped", NASTY, 3)
    noted = load("example", 0.5, details={"notes": [NASTY]}, options={"key": NASTY})
    return made_run(sample, failed, skipped, noted, model=NASTY, dtype=NASTY, notes=[NASTY])


@pytest.mark.parametrize("colour", [False, True])
def test_names_from_strangers_are_harmless(colour: bool) -> None:
    text = render(nasty_run(), width=200, colour=colour)
    ours = re.sub(r"\x1b\[[0-9;]*m", "", text)  # rich's own colours
    assert all(letter.isprintable() or letter == "\n" for letter in ours)
    assert r"[red]\x1b[2J" in ours
    assert ":boom:" in ours
    if not colour:
        assert "\x1b" not in text


def test_wide_letters_keep_within_the_width() -> None:
    text = render(made_run(load("读取器" * 5, 1.0)), width=100)
    assert max(map(cell_len, text.splitlines())) <= 100


def test_plain_without_a_terminal_and_coloured_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    run = read_run(GOLDEN / "run")
    assert "\x1b" not in render(run)
    assert "\x1b[" in render(run, colour=True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in render(run)


# Edges: little was measured, or something is missing.


@pytest.mark.parametrize(
    "run",
    [
        Run(path=Path("x/records.jsonl"), plan=None, host=None, samples=()),
        made_run(),
        replace(made_run(load("example", 1.0)), host=None),
        replace(made_run(load("example", 1.0)), plan=None),
        replace(made_run(load("example", 1.0)), host={"kind": "host", "cores": 1}),
        made_run(unmeasured("pt", "failed", "it broke")),
        made_run(unmeasured("pt", "skipped", "needs pt"), passes=1),
        made_run(load("example", 1.0, **HERE)),
        made_run(replace(load("example", 1.0), ownership=None)),
    ],
    ids=[
        *("nothing", "plan only", "no host", "no plan", "bare host"),
        *("failed", "skipped", "no storage", "no ownership"),
    ],
)
def test_little_can_be_shown_too(run: Run) -> None:
    text = render(run)
    assert text.startswith("coldload")
    assert "None" not in text
    assert text.endswith(f"coldload runs {run.path.parent}\n")


def test_a_run_without_ceilings_says_so_in_each_row() -> None:
    row = by_title(made_run(load("example", 1.0)))["example"]
    assert row.percent is None
    assert limit(row, {}, 2) == "no ceiling measured"


@pytest.mark.parametrize(
    "sample",
    [
        replace(load("x", 1.0), seconds=Seconds(total=0.0)),
        replace(load("x", 1.0), seconds=Seconds()),
        replace(load("x", 1.0), bytes=0),
        replace(load("x", 1.0), bytes=None),
    ],
)
def test_no_rate_without_bytes_or_time(sample: Sample) -> None:
    assert rate_of(sample) is None
    assert rows(made_run(sample)) == []
    render(made_run(sample))


def test_c66_what_the_kernel_did_not_say_is_left_empty_never_zero() -> None:
    silent = replace(
        load("example", 1.0),
        cpu_seconds=None,
        system_seconds=None,
        minor_faults=None,
        major_faults=None,
        peak_rss_bytes=None,
    )
    row = by_title(made_run(silent))["example"]
    for value in (row.cpu_per_gb, row.cpu_share, row.major_faults, row.peak_bytes):
        assert value is None
    shown = {column.title: column.show(row) for column in COLUMNS}
    for title in ("CPU s/GB", "minor flt", "major flt", "peak MiB", "% ceil", "thr"):
        assert shown[title] == ""


# Rows and ceilings.


def test_one_pass_has_no_range() -> None:
    shown = {c.title: c.show(by_title(made_run(load("example", 1.0)))["example"]) for c in COLUMNS}
    assert (shown["GB/s"], shown["range"]) == ("1.00", "1 pass")


def test_median_and_range_are_over_the_passes() -> None:
    run = made_run(*(load("example", rate, n) for n, rate in enumerate((1.0, 4.0, 2.0), 1)))
    row = by_title(run)["example"]
    assert (row.rate.n, row.rate.median, row.rate.low, row.rate.high) == (3, 2.0, 1.0, 4.0)


def test_the_percentage_is_paired_within_each_pass() -> None:
    """The disk halves its rate in pass 2, and so does the loader: it is at half its ceiling."""
    samples = [ceiling("owned-read", 2.0, 1), ceiling("owned-read", 1.0, 2)]
    samples += [load("example", 1.0, 1), load("example", 0.5, 2), load("example", 0.1, 3)]
    percent = by_title(made_run(*samples))["example"].percent
    assert percent is not None
    assert (percent.n, percent.low, percent.high) == (2, 50.0, 50.0)


def test_ratios_are_paired_by_pass() -> None:
    samples = [load("a", 2.0, 1), load("a", 1.0, 2), load("b", 1.0, 1), load("b", 0.5, 2)]
    made = by_title(made_run(*samples))
    pair = ratio(made["a"], made["b"])
    assert pair is not None
    assert (pair.n, pair.median, pair.low, pair.high, pair.kind) == (2, 2.0, 2.0, 2.0, "range")


def test_each_kind_of_memory_has_its_own_ceiling() -> None:
    samples = [ceiling("direct-ring", 4.0), ceiling("owned-read", 2.0), ceiling("owned-read", 1.0)]
    samples += [load("kept", 1.0), load("lent", 1.0, ownership="borrowed")]
    samples += [load("seen", 1.0, ownership="mapped")]
    made = by_title(made_run(*samples))
    shares = {name: row.percent.median for name, row in made.items() if row.percent}
    assert shares == {"kept": 50.0, "lent": 25.0, "seen": 25.0}


def test_a_ceiling_of_one_storage_or_state_is_none_of_another() -> None:
    samples = [ceiling("owned-read", 2.0), ceiling("direct-ring", 2.0)]
    samples += [load("warm", 1.0, cache="warm"), load("away", 1.0, storage=NET)]
    assert all(row.percent is None for row in rows(made_run(*samples)))


def test_what_failed_or_was_discarded_makes_no_row() -> None:
    late = load("example", 9.0)
    run = made_run(replace(late, status="failed", reason="clocks"), load("example", 1.0))
    assert [row.rate.median for row in rows(run)] == [1.0]
    assert len(run.settled()) == 1
    assert "1 sample(s) were taken again" in findings.discarded(run)[0]


def test_a_run_that_was_not_cold_is_never_averaged_with_cold_ones_nor_wins() -> None:
    samples = [load("fast", 9.0, 1, state="mixed"), load("fast", 1.0, 2), load("other", 2.0, 1)]
    made = rows(made_run(*samples, ceiling("owned-read", 3.0), ceiling("owned-read", 3.0, 2)))
    assert [(row.title, row.state, row.rate.median) for row in made] == [
        ("other", "cold", 2.0),
        ("fast", "cold", 1.0),
        ("fast", "mixed", 9.0),
    ]
    assert "other" in findings.winners(made)[0].split("owned: ")[1].split()[0]
    assert findings.contradictions(made) == []
    assert "asked cold, was mixed: fast" in findings.not_as_asked(made)[0]


def test_titles_name_options_and_the_twin() -> None:
    assert title_of(load("pt", 1.0, options={"mmap": True, "a": 1})) == "pt (a=1, mmap=true)"
    assert title_of(load("pt", 1.0, options={"twin": True})) == "pt [A/A]"
