"""What is said and shown of assembling: stages alone, their sum, overlapped and the bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.page.terminal import render
from bench.record.records import CacheRecord, Run, Sample, Seconds, StorageRecord
from bench.words.answer import answer_words
from bench.words.assembly_seen import assembled, places


def sample(way: str, number: int, total: float, **stages: float | str) -> Sample:
    options = {key: stages.pop(key) for key in ("by", "part") if key in stages}
    return Sample(
        case=f"assemble/{way}/{options}",
        phase="assemble",
        loader=way,
        options={"into": "nowhere" if way == "read-alone" else "parameters", **options},
        model="m",
        size=1 << 30,
        dtype="bfloat16",
        storage=StorageRecord(label="nvme"),
        pass_number=number,
        status="ok",
        bytes=10**8 if "part" in options else 10**9,
        seconds=Seconds(total=total, **stages),  # type: ignore[arg-type]
        ownership="borrowed" if way == "read-alone" else "owned",
        cache=CacheRecord(requested="cold", state="cold"),
    )


def run_of(*, smoke: bool = False) -> Run:
    """Three passes, each slower than the one before. Loader a reads on while its tensors are
    sliced: what its staged sample calls reading is less than reading takes."""
    samples = []
    for number, drift in enumerate((1.0, 2.0, 3.0), 1):
        samples += [
            sample("stock", number, 6.0 * drift),
            sample("read-alone", number, 1.0 * drift),
            sample("overlapped", number, 1.2 * drift),
            sample("read-alone", number, 2.0 * drift, by="a"),
            sample("staged", number, 2.5 * drift, by="a", read=1.4 * drift, slice=1.1 * drift),
            sample("overlapped", number, 2.2 * drift, by="a"),
            sample("overlapped", number, 9.0 * drift, by="b"),
            sample("overlapped", number, 0.1 * drift, part="draft"),
            sample("stock", number, 0.4 * drift, part="draft"),
        ]
    return Run(path=Path("records.jsonl"), plan={"smoke": smoke}, host={}, samples=samples)


def test_the_bound_is_the_slowest_stage_alone_and_reading_is_a_sample_of_its_own() -> None:
    main, draft = places(run_of())
    assert main.nbytes, draft.nbytes == (10**9, 10**8)
    by_a = main.ways["a"]
    assert by_a.bound == {1: 2.0, 2: 4.0, 3: 6.0}
    assert by_a.sum == pytest.approx({1: 3.1, 2: 6.2, 3: 9.3})
    assert by_a.over_bound is not None
    assert by_a.over_bound.median == pytest.approx(1.1)
    assert main.ways["b"].bound == {}
    assert draft.ways[""].overlapped == pytest.approx({1: 0.1, 2: 0.2, 3: 0.3})


def test_a_pass_without_one_of_the_samples_has_no_bound() -> None:
    run = run_of()
    run = Run(
        path=run.path,
        plan=run.plan,
        host={},
        samples=[
            one
            for one in run.samples
            if (one.loader, one.pass_number) not in {("staged", 1), ("read-alone", 2)}
        ],
    )
    ways = places(run)[0].ways
    assert ways["a"].bound == {3: 6.0}
    assert ways[""].bound == {1: 1.0, 3: 3.0}


def test_what_is_said_is_paired_by_pass() -> None:
    said, draft = assembled(run_of())
    assert "takes 1.20 x (1.20 to 1.20, range of 3) as long as reading alone (2.00 s)" in said
    assert "by a it is 4.40 s, 6.20 s one stage after another, 1.10 x" in said
    assert "its slowest stage alone (read)" in said
    assert "5.00 x (5.00 to 5.00, range of 3) as fast as the engine's way" in said
    assert "tp1, cold on nvme" in said
    assert draft.startswith("Parameters of draft model, tp1, cold on nvme")
    assert "4.00 x" in draft
    assert assembled(run_of(smoke=True)) == []


def test_the_table_shows_the_sum_the_overlapped_total_and_the_bound_of_each_loader() -> None:
    lines = render(run_of()).splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("checkpoint -> parameters"))
    heads = lines[start + 1].split("  ")
    assert [one.strip() for one in heads if one.strip()] == [
        *("way", "GB", "GB/s", "range", "read s", "slice s", "sum s", "overlapped s", "bound s"),
        "x bound",
    ]
    cells = {line.split("  ")[0]: line.split()[1:] for line in lines[start + 2 : start + 6]}
    assert cells["a"][-6:] == ["4.000", "2.200", "6.200", "4.400", "4.000", "1.10"]
    assert cells["ours"][-5:] == ["2.000", "2.000", "2.400", "2.000", "1.20"]
    assert cells["stock (the engine's way)"][-1] == "12.000"
    assert cells["b"][-1] == "18.000"
    draft = next(line for line in lines if line.startswith("checkpoint -> parameters: draft model"))
    assert lines[lines.index(draft) + 2].split()[:2] == ["ours", "0.10"]


def test_the_answer_names_no_stage_alone_and_no_draft_as_the_quickest() -> None:
    (said,) = [line for line in answer_words(run_of()) if "quickest" in line]
    assert "overlapped (into=parameters) is the quickest, 2.40 s" in said
