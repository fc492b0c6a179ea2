"""Two runs side by side: what is matched, what is said of the difference, and the gate."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bench.cli import main
from bench.compare.cases import compare_cases
from bench.compare.differs import differences
from bench.compare.gate import Gate, GateError, Judged, judge, parse_gate
from bench.given import Given
from bench.record.records import RECORDS, Run, Sample
from tests.tiny_records import slower, write_run
from tests.tiny_report import HOST, NET, NVME, STRANGER, ceiling, load, made_run, unmeasured


def given(*samples: Sample, name: str = "a", label: str | None = None, **plan: Any) -> Given:
    run = replace(made_run(*samples, **plan), path=Path(f"runs/{name}/records.jsonl"))
    return Given(name=name, run=run, label=label)


def passes(count: int, rate: float = 1.0, loader: str = "pt", **more: Any) -> list[Sample]:
    """A loader over so many passes that differ a little."""
    return [load(loader, rate * (1 + n / 1000), n, **more) for n in range(1, count + 1)]


def total(one: Given, other: Given) -> Any:
    (case,) = compare_cases(one, other).both
    return case.stages["total"]


def coldload(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [*map(str, args)])


def test_twice_the_time_is_slower_once_there_are_passes_to_show_it() -> None:
    timed = total(given(*passes(4)), given(*passes(4, rate=0.5), name="b"))
    assert (timed.verdict, timed.needed, timed.paired) == ("slower", None, False)
    assert timed.ratio.median == pytest.approx(2.0)
    assert timed.p == pytest.approx(2 / 70)
    assert timed.b.median == pytest.approx(2 * timed.a.median)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_passes_can_show_nothing_and_it_says_how_many_would(count: int) -> None:
    timed = total(given(*passes(count)), given(*passes(count, rate=0.1), name="b"))
    assert (timed.verdict, timed.needed) == ("too few passes", 4)


def test_the_same_figures_show_no_difference() -> None:
    timed = total(given(*passes(8)), given(*passes(8), name="b"))
    assert timed.verdict == "no difference shown"
    assert timed.ratio.median == 1.0
    assert timed.ratio.kind == "95 % interval"
    assert timed.ratio.low <= 1.0 <= timed.ratio.high


def test_two_storages_of_one_run_are_paired_by_pass() -> None:
    drift = {1: 1.0, 2: 3.0, 3: 0.5, 4: 2.0, 5: 0.7, 6: 1.4}
    samples = [
        load("pt", factor * rate, n, storage=storage)
        for n, factor in drift.items()
        for storage, rate in ((NVME, 1.0), (NET, 0.9))
    ]
    run = made_run(*samples, ceiling("memory-read", 8.0, storage=None, cache="none"))

    def side(label: str) -> Given:
        kept = tuple(s for s in run.samples if s.storage is None or s.storage.label == label)
        return Given(name=f"r:{label}", run=replace(run, samples=kept), label=label)

    timed = total(side("nvme"), side("net"))
    assert timed.paired
    assert timed.verdict == "slower"  # though the drift of the passes is far larger
    assert timed.ratio.low == pytest.approx(1 / 0.9)


def test_only_the_same_work_in_the_same_verified_state_is_compared() -> None:
    """C78, C86: neither another cache state nor another size, thread count or storage."""
    one = given(load("pt", 1.0), load("eager", 1.0, threads=1))
    other = given(
        load("pt", 9.0, state="mixed"),
        load("pt", 5.0, cache="warm"),
        load("pt", 1.0, storage=NET),
        replace(load("pt", 1.0), size=5, case="size"),
        load("pt", 1.0, options={"mmap": True}),
        load("eager", 1.0, threads=2),
        load("pt", 1.0, phase="assemble", case="assemble"),
        name="b",
    )
    cases = compare_cases(one, other)
    assert cases.both == ()
    assert len(cases.only_a) == 2
    assert len(cases.only_b) == 7
    assert any("was mixed" in name for name in cases.only_b)


def test_a_storage_called_by_its_label_is_the_same_by_another_name() -> None:
    one = given(*passes(1), label="nvme")
    other = given(*passes(1, storage=NET), name="b", label="net")
    assert len(compare_cases(one, other).both) == 1


def test_phases_and_stages_to_come_are_compared_without_new_code() -> None:
    way = [replace(s, phase="assemble") for s in passes(4)]
    way = [replace(s, seconds=replace(s.seconds, quantise=1.0, slice=0.5)) for s in way]
    later = [slower(s, 3.0, "quantise") for s in way]
    (case,) = compare_cases(given(*way), given(*later, name="b")).both
    assert case.phase == "assemble"
    assert case.stages["quantise"].ratio.median == pytest.approx(3.0)
    assert case.stages["slice"].verdict == "no difference shown"


def test_c86_what_differs_of_host_and_settings_is_told() -> None:
    one, other = given(size=1), given(size=2, name="b")
    machine = {**HOST["host"], "cpu": {"model": "Other"}, "memory": {"available_bytes": 5}}
    changed = replace(other.run, host={**HOST, "host": machine})
    found = {d.what: (d.a, d.b) for d in differences(one, replace(other, run=changed))}
    assert found == {"size": (1, 2), "cpu.model": ("Made-up Processor", "Other")}
    assert differences(one, one) == []


def test_a_host_that_tells_nothing_is_no_crash() -> None:
    bare = Given(name="x", run=Run(path=Path("x"), plan=None, host=None, samples=()))
    assert {d.b for d in differences(given(), bare)} == {None}


# The gate


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("read slower 10%", Gate(what="read", direction="slower", percent=10)),
        (
            " disk_to_host  faster 2.5 % ",
            Gate(what="disk_to_host", direction="faster", percent=2.5),
        ),
        ("w8a8 slower 0%", Gate(what="w8a8", direction="slower", percent=0)),
    ],
)
def test_limits(text: str, expected: Gate) -> None:
    assert parse_gate(text) == expected
    assert parse_gate(expected.text) == expected


@pytest.mark.parametrize(
    "text", ["", "read", "read slower", "read slow 10%", "read slower 10", "read slower -1%", "10%"]
)
def test_what_is_no_limit_says_what_one_looks_like(text: str) -> None:
    with pytest.raises(GateError, match="'read slower 10%'"):
        parse_gate(text)


def judged(text: str, before: list[Sample], after: list[Sample]) -> Judged:
    cases = compare_cases(given(*before), given(*after, name="b"))
    return judge(parse_gate(text), cases)


def gate_of(text: str, before: list[Sample], after: list[Sample]) -> tuple[str, ...]:
    found = judged(text, before, after)
    assert found.undecided == ()
    return found.breaches


@pytest.mark.parametrize("count", [4, 8])
@pytest.mark.parametrize(("factor", "fails"), [(1.05, False), (1.2, True), (0.8, False)])
def test_a_stage_that_takes_longer_fails(count: int, factor: float, fails: bool) -> None:
    before = passes(count)
    found = gate_of("read slower 10%", before, [slower(s, factor, "read") for s in before])
    assert bool(found) is fails
    if fails:
        assert "pt (nvme, cold): read 0.59" in found[0]
        assert "1.20 x" in found[0]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_passes_can_not_fail_a_gate_and_say_how_many_could(count: int) -> None:
    before = passes(count)
    found = judged("read slower 10%", before, [slower(s, 5.0, "read") for s in before])
    assert found.breaches == ()
    (said,) = found.undecided
    assert said.endswith(
        f"{count} and {count} passes can show no difference, it takes 4 (--passes=4)"
    )
    assert gate_of("read slower 10%", before, [slower(s, 1.05, "read") for s in before]) == ()


def test_faster_is_a_limit_too_and_another_stage_is_no_breach() -> None:
    before = passes(4)
    quick = [slower(s, 0.5, "read") for s in before]
    assert gate_of("read faster 90%", before, quick)
    assert not gate_of("read faster 110%", before, quick)
    assert not gate_of("consume slower 1%", before, quick)


def test_noise_is_no_breach_and_it_says_how_many_passes_might_tell() -> None:
    """Beyond the limit by the median, but not in every pass."""
    before = [load("pt", rate, n) for n, rate in enumerate((1.0, 0.5, 1.1, 0.9), start=1)]
    after = [load("pt", rate, n) for n, rate in enumerate((0.8, 0.6, 0.7, 0.75), start=1)]
    found = judged("total slower 10%", before, after)
    assert found.breaches == ()
    assert (
        "not shown by 4 and 4 passes; if more come as these did, it takes about 12"
        in (found.undecided[0])
    )


def test_what_is_smaller_than_the_clocks_agree_is_no_breach() -> None:
    before = passes(8)
    assert not gate_of("open slower 10%", before, [slower(s, 2.0, "open") for s in before])


def test_a_phase_is_its_total_and_ceilings_are_only_meant_by_name() -> None:
    before, after = passes(4), passes(4, rate=0.5)
    assert gate_of("disk_to_host slower 50%", before, after)
    disk = [ceiling("direct-ring", 2.0, n) for n in range(1, 5)]
    worn = [ceiling("direct-ring", 1.0, n) for n in range(1, 5)]
    assert not gate_of("read slower 10%", [*before, *disk], [*before, *worn])
    assert gate_of("ceiling slower 10%", [*before, *disk], [*before, *worn])


def test_a_case_that_fails_now_is_a_breach() -> None:
    found = gate_of("read slower 10%", passes(1), [unmeasured("pt", "failed", "SIGBUS")])
    assert found == ("pt (nvme, cold): failed on the second side: SIGBUS",)


def test_a_limit_on_what_is_not_there_names_what_is() -> None:
    with pytest.raises(GateError, match=r"no case .* has slice; they have open, .*, disk_to_host"):
        gate_of("slice slower 10%", passes(1), passes(1))


# The command


def test_the_command_states_differences_first_and_then_the_cases(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", passes(4))
    other = write_run(tmp_path / "two", passes(4, rate=0.5), host={"kernel": "9.9"})
    done = coldload("compare", one, other)
    assert done.exit_code == 0, done.output
    assert done.output.index("kernel: None | 9.9") < done.output.index("pt (nvme, cold)")
    assert "slower" in done.output
    assert "2.00" in done.output


def test_a_gate_is_exit_1_and_json_says_why(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", passes(4))
    other = write_run(tmp_path / "two", [slower(s, 2.0, "read") for s in passes(4)])
    args = ("--fail-if", "read slower 10%", "--fail-if", "consume slower 10%", "--json")
    done = coldload("compare", one, other, *args)
    assert done.exit_code == 1
    document = json.loads(done.stdout)
    assert [bool(gate["breaches"]) for gate in document["gates"]] == [True, False]
    (case,) = document["comparisons"][0]["cases"]
    assert case["stages"]["read"]["ratio"]["median"] == pytest.approx(2.0)
    assert case["stages"]["read"]["verdict"] == "slower"
    assert coldload("compare", one, one, *args).exit_code == 0


def test_a_gate_that_the_passes_can_not_decide_is_exit_3(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", passes(3))
    other = write_run(tmp_path / "two", [slower(s, 2.0, "read") for s in passes(3)])
    done = coldload("compare", one, other, "--fail-if", "read slower 10%")
    assert done.exit_code == 3
    assert "read slower 10%: the passes can't tell" in done.output
    assert "it takes 4 (--passes=4)" in done.output
    failed = write_run(tmp_path / "failed", [unmeasured("pt", "failed", "SIGBUS")])
    args = ("--fail-if", "read slower 10%", "--json")
    document = json.loads(coldload("compare", one, other, *args).stdout)
    assert document["gates"][0]["breaches"] == []
    assert len(document["gates"][0]["undecided"]) == 1
    assert coldload("compare", one, failed, *args).exit_code == 1


def test_several_runs_are_a_matrix_against_the_first(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / str(n), passes(4, rate=1 / n)) for n in (1, 2, 3)]
    done = coldload("compare", *runs)
    assert done.exit_code == 0
    row = next(line for line in done.output.splitlines() if line.startswith("pt (nvme"))
    assert row.split()[-6:] == ["2.00", "x", "+", "3.00", "x", "+"]
    document = json.loads(coldload("compare", *runs, "--json").stdout)
    assert [one["b"] for one in document["comparisons"]] == [str(run) for run in runs[1:]]


def test_storages_of_one_run_by_their_label(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [*passes(6), *passes(6, rate=0.5, storage=NET)])
    done = coldload("compare", f"{run}:nvme", f"{run}:net", "--json")
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)["comparisons"]
    assert found["cases"][0]["stages"]["total"]["paired"] is True
    assert {"what": "storage.fs_type", "a": "xfs", "b": "nfs4"} in found["differs"]


def test_a_folder_with_a_colon_in_its_name_is_a_folder(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a:b", passes(1))
    assert coldload("compare", run, f"{run}:nvme").exit_code == 0


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["one"], 2, "name at least two"),
        (["one", "nowhere"], 2, "No such file"),
        (["one", "one:attic"], 2, "no storage is called 'attic'; it has nvme"),
        (["one", "other"], 3, "size 1000000000 and 5"),
        (["one", "net"], 3, "name one of each, as in one:LABEL"),
        (["one", "newer"], 2, "schema 99 is newer"),
        (["one", "s3://user:secret@host/x"], 2, "expected a run's folder, found an address"),
        (["one", "one", "--fail-if", "nonsense"], 2, "expected a stage or phase"),
        (["one", "one", "--fail-if", "slice slower 1%"], 2, "has slice"),
    ],
)
def test_what_cannot_be_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(Path("one"), passes(1))
    write_run(Path("other"), [replace(s, size=5) for s in passes(1)], size=5)
    write_run(Path("net"), passes(1, storage=NET))
    newer = write_run(Path("newer"), passes(1)) / RECORDS
    newer.write_text(newer.read_text().replace('"schema": 1', '"schema": 99'))
    done = coldload("compare", *args)
    assert done.exit_code == code
    assert said in done.output
    assert "secret" not in done.output
    again = coldload("compare", *args, "--json")
    assert again.exit_code == code
    assert said in json.loads(again.stdout)["error"]


def test_names_of_strangers_move_no_cursor_and_colour_nothing(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", passes(1, loader=STRANGER))
    done = coldload("compare", one, one)
    assert done.exit_code == 0
    assert "\x1b" not in done.output
    assert "odd[red]" in done.output
