"""The report as HTML, as Markdown and as pictures: what is in it, and that names do no harm."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bench.cli import main
from bench.page.render import code, escaped, html, markdown
from bench.page.sections import sections
from bench.page.tables import tables
from bench.record.records import RECORDS, Run, Sample, Seconds
from bench.words.answer import answer
from tests.tiny_records import write_run
from tests.tiny_report import (
    NET,
    PLAN,
    ceiling,
    golden_samples,
    load,
    made_run,
    unmeasured,
)

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style><style>*{display:none}",
    "{{ 7 * 7 }}{% raw %}",
    "a | b\n| c",
    "[x](javascript:alert(1)) `y` **z**",
    "\x1b[31m\x00\u202e",
    "javascript:alert(1)",
]


class Page(HTMLParser):
    """Elements with their attributes, and all that a reader sees."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def page_of(*runs: Run) -> str:
    found, across = sections(runs)
    return html(found, across, [b"{}\n"] * len(runs))


def coldload(*args: str | Path) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, args)])


# The answer


def three(name: str, rate: float, **more: Any) -> list[Sample]:
    return [load(name, rate * (1 + n / 100), n, **more) for n in (1, 2, 3)]


def test_the_answer_comes_first_in_words() -> None:
    run = made_run(
        *three("parallel", 1.6, threads=2),
        *three("safetensors-mmap", 0.8, ownership="mapped"),
        *three("parallel", 6.0, threads=2, cache="warm"),
        *[ceiling("direct-ring", 2.0, n) for n in (1, 2, 3)],
    )
    found = answer(run)
    assert (
        found.headline
        == "From nvme, weights load at 1.63 GB/s cold, 82 % of what the storage gives"
    )
    assert found.lead[0].startswith("Fastest there: parallel, 2 threads, 0.61 s for 953.67 MiB.")
    assert "100 GB take 61 s" in found.lead[0]
    assert "(safetensors-mmap) reached 0.82 GB/s: 100 GB in 2.0 minutes" in found.lead[1]
    assert [tile.value for tile in found.tiles] == ["1.63", "0.82", "2.00", "6.12"]
    assert found.doubt is None


def test_the_answer_names_the_fastest_that_the_engine_has() -> None:
    run = made_run(
        *three("snapshot", 2.0, ownership="borrowed"),
        *three("dummy", 9.0),
        *three("pt-threads", 1.0, threads=2),
        *three("safetensors-mmap", 0.5, ownership="mapped"),
    )
    lead = " ".join(answer(run).lead)
    assert (
        "Of what vLLM has, pt-threads, 2 threads is the fastest: 1.02 GB/s, 100 GB in 98 s." in lead
    )
    usual = made_run(*three("parallel", 2.0), *three("safetensors-mmap", 0.5, ownership="mapped"))
    assert "Of what vLLM has" not in " ".join(answer(usual).lead)


def test_the_answer_names_no_ceiling_as_a_way() -> None:
    where = {"storage": None, "cache": "none", "phase": "quantise"}
    floor = load("floor", 1.0, seconds=Seconds(quantise=1.0, total=1.0), **where)
    fast = load("fast", 1.0, seconds=Seconds(quantise=2.0, total=2.0), **where)
    assert answer(made_run(floor, fast)).headline.startswith(
        "Quantising: fast is the quickest, 2.0"
    )
    assert answer(made_run(floor)).headline.startswith("Only ceilings were measured")


def test_the_answer_of_a_run_without_cold_loads_or_without_any() -> None:
    assert "out of the page cache" in answer(made_run(*three("pt", 1.0, cache="warm"))).headline
    only = made_run(ceiling("memory-read", 8.0, storage=None, cache="none"))
    assert answer(only).headline.startswith("Only ceilings were measured")
    whole = Seconds(read=1.0, quantise=2.0, total=3.0)
    later = load("way", 1.0, storage=None, cache="none", phase="assemble", seconds=whole)
    assert answer(made_run(later)).headline == "Assembling: way is the quickest, 3.00 s, 0.33 GB/s"


def test_more_than_the_ceiling_is_no_triumph() -> None:
    run = made_run(*three("pt", 3.0), *[ceiling("direct-ring", 2.0, n) for n in (1, 2, 3)])
    assert "more than this run's ceiling: see the notes" in answer(run).headline


@pytest.mark.parametrize("plan", [{"smoke": True}, {"size": 1 << 20}])
def test_a_run_that_means_nothing_says_so(plan: dict[str, Any]) -> None:
    assert answer(replace(made_run(*three("pt", 1.0)), plan={**PLAN, **plan})).doubt is not None


# Tables


def test_tables_hold_every_phase_and_only_columns_that_say_something() -> None:
    whole = Seconds(read=1.0, quantise=2.0, total=3.0)
    later = load(
        "way", 1.0, storage=None, cache="none", phase="new_one", device="npu:0", seconds=whole
    )
    reading, new, tops = tables(made_run(load("pt", 1.0), later, ceiling("direct-ring", 2.0)))
    assert reading.columns[0] == "way"
    assert {"GB/s", "open s", "read s", "limited by", "threads"} - set(reading.columns) == {
        "threads"
    }
    assert {"device", "share", "quantise s"} & set(reading.columns) == set()
    assert {"device", "quantise s"} <= set(new.columns)
    assert new.title == "New one"
    assert tops.title == "Ceilings"
    for table in (reading, new, tops):
        assert all(len(row) == len(table.columns) == len(table.figures) for row in table.rows)


# HTML


def test_the_page_is_whole_and_asks_for_nothing_else() -> None:
    text = page_of(made_run(*golden_samples()))
    page = Page(text)
    for tag, attributes in page.elements:
        for name in ("src", "href", "xlink:href", "action"):
            target = attributes.get(name)
            assert target is None or target.startswith(("data:", "#")), (tag, target)
    assert {tag for tag, _ in page.elements} & {
        "iframe",
        "object",
        "embed",
        "base",
        "form",
    } == set()
    assert "http://" not in re.sub(r'xmlns(:xlink)?="[^"]*"', "", text)
    assert "https://" not in text
    words = "".join(page.words)
    order = ["weights load at", "Pictures", "Storage to host memory", "Host", "Method", "Records"]
    assert sorted(order, key=words.index) == order


def named(names: list[str]) -> Run:
    """A run in which everything that a stranger may name is called so."""
    samples = []
    for number, name in enumerate(names, start=1):
        samples += [
            load(name, number, storage=NET, options={"o": name}),
            load("pt", number, case=name, storage=replace(NET, label=name)),
            unmeasured("pt", "failed", name, case=f"failed {number}"),
            load("noted", 0.5, details={"notes": [name]}, case=f"noted {number}"),
        ]
    together = " ".join(names)
    run = made_run(*samples, model=together, notes=names, started=together)
    return replace(run, path=Path(together.replace("\x00", "").replace("/", "")) / RECORDS)


def test_names_of_strangers_are_only_words_in_html() -> None:
    def elements(run: Run) -> list[tuple[str, list[str]]]:
        page = Page(page_of(run))
        return sorted((tag, sorted(attributes)) for tag, attributes in page.elements)

    found = elements(named(HOSTILE))
    assert found == elements(named([f"plain {n}" for n in range(len(HOSTILE))]))
    assert not any(key.startswith("on") for _, keys in found for key in keys)


def test_the_raw_records_are_in_the_page_byte_by_byte(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", golden_samples())
    assert coldload(folder, "-o", tmp_path / "r.html").exit_code == 0
    page = Page((tmp_path / "r.html").read_text())
    (link,) = [a for tag, a in page.elements if tag == "a" and "download" in a]
    assert link["download"] == "coldload-run.jsonl.gz"
    packed = base64.b64decode((link["href"] or "").split(",")[1])
    assert gzip.decompress(packed) == (folder / RECORDS).read_bytes()


def test_the_same_records_give_the_same_page() -> None:
    run = made_run(*three("pt", 1.0))
    assert page_of(run) == page_of(run)


def test_several_runs_are_told_one_by_one_and_drawn_together() -> None:
    small = [load("pt", 1.0, n, bytes=1 << 28) for n in (1, 2)]
    text = page_of(made_run(*three("pt", 1.0)), made_run(*small))
    page = Page(text)
    assert [tag for tag, _ in page.elements].count("article") == 2
    assert "Across the runs" in text
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)


# Markdown


def test_markdown_says_the_same_and_names_its_pictures(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", golden_samples())
    done = coldload(folder, "-o", tmp_path / "my report.md")
    assert done.exit_code == 0, done.output
    text = (tmp_path / "my report.md").read_text()
    assert text.startswith("## From nvme, weights load at ")
    named = re.findall(r"!\[[^\n]*\]\(([^)]*)\)", text)
    files = sorted(path.name.replace(" ", "%20") for path in tmp_path.glob("*.svg"))
    assert sorted(named) == files
    assert len(files) == 3
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block


def test_names_of_strangers_are_only_words_in_markdown() -> None:
    found, across = sections([named(HOSTILE)])
    text = markdown(found, across, "report")
    bare = re.sub(r"`+[^\n]*?`+", "", re.sub(r"\\.", "", text))
    assert not re.search(r"<[a-z/!]", bare, re.I)
    assert "](javascript" not in bare
    assert all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a|b", "a\\|b"), ("*x*_y_", "\\*x\\*\\_y\\_"), ("<b>", "\\<b\\>"), ("1.5 GB/s", "1.5 GB/s")],
)
def test_escaping(text: str, expected: str) -> None:
    assert escaped(text) == expected


def test_code_holds_any_backticks() -> None:
    assert code("a") == "`a`"
    assert code("a `b` ``c``") == "``` a `b` ``c`` ```"


# The command


def test_a_report_beside_others_and_pictures_in_a_folder(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", golden_samples())
    done = coldload(folder, "--pictures", tmp_path / "deep" / "p", "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["report"] is None
    assert document["lost"] == []
    assert all(Path(file).read_text().startswith("<svg ") for file in document["pictures"])
    assert "rate-nvme-cold.svg" in {Path(file).name for file in document["pictures"]}


def test_without_a_name_it_is_report_html_and_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(Path("run"), golden_samples())
    Path("report.html").write_text("old")
    done = coldload("run")
    assert done.exit_code == 0, done.output
    assert Path("report.html").read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in Path().iterdir()) == ["report.html", "run"]
    assert Path("report.html").stat().st_mode & 0o444


def test_one_storage_of_a_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", golden_samples())
    assert coldload(f"{folder}:net", "-o", tmp_path / "r.html").exit_code == 0
    assert "Rate: nvme" not in (tmp_path / "r.html").read_text()


def test_broken_lines_are_passed_over_and_counted(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", golden_samples())
    lines = (folder / RECORDS).read_text().splitlines()
    lines[5] = lines[5][:50]
    lines.insert(9, "\x00\xff")
    (folder / RECORDS).write_text("\n".join(lines))  # and the last one has no end
    done = coldload(folder, "-o", tmp_path / "r.html")
    assert done.exit_code == 0, done.output
    assert "2 lines passed over as broken (6, 10); its last line was cut off" in done.output
    assert "2 broken lines passed over" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("args", "code", "expected"),
    [
        (["nowhere"], 2, "No such file"),
        (["notes"], 2, "no line of it is a coldload record"),
        (["newer"], 2, "schema 7 is newer"),
        (["empty"], 3, "nothing was measured"),
        (["run", "empty"], 3, "nothing was measured"),
        (["run", "-o", "r.pdf"], 2, "ends in .html or .md"),
        (["run", "-o", "folder.md"], 2, "is a folder"),
        (["run", "-o", "none/r.html"], 2, "there is no folder none"),
        (["run", "--pictures", "notes"], 2, "notes"),
        (["https://user:secret@host/run"], 2, "found an address"),
        (["a\x00b"], 2, "give a run's folder"),
    ],
)
def test_what_cannot_be_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], code: int, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(Path("run"), [load("pt", 1.0)])
    write_run(Path("empty"), [unmeasured("pt", "skipped", "no pt here")])
    Path("newer.d").mkdir()
    Path("newer").write_text('{"kind": "plan", "schema": 7}\n')
    Path("notes").write_text("Dear diary\nno records today\n")
    Path("folder.md").mkdir()
    done = coldload(*args)
    assert done.exit_code == code, done.output
    assert expected in done.output
    assert "secret" not in done.output
    assert "Traceback" not in done.output
    again = coldload(*args, "--json")
    assert again.exit_code == code
    assert expected in json.loads(again.stdout)["error"]
