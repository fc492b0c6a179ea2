"""Whether quantising offline saves time: the arithmetic, the words, the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from bench.cli import main
from bench.record.records import CacheRecord, Sample, Seconds, StorageRecord, read_run
from bench.words.w8a8_projection import project
from bench.words.w8a8_verdict import verdicts
from bench.words.w8a8_words import projected_sentences, sentences, w8a8_findings
from tests.tiny_records import write_run

GIB = 1 << 30
ONLINE = {"read": 2.0, "slice": 0.5, "quantise": 1.0, "layout": 0.5}
OFFLINE = {"read": 1.0, "slice": 0.25, "layout": 0.5}
DIGEST = "d" * 32


def sample(way: str, number: int, stages: dict[str, float], **details: Any) -> Sample:
    fetched = GIB if way == "online" else GIB // 2
    return Sample(
        case=f"w8a8/{way}/into=nz",
        phase="w8a8",
        loader=way,
        options={"into": "nz"},
        model="m",
        size=GIB,
        dtype="bfloat16",
        storage=StorageRecord(label="disk"),
        layout="tp8",
        pass_number=number,
        status="ok",
        bytes=GIB // 8,
        seconds=Seconds(**stages, total=sum(stages.values())),
        cache=CacheRecord(requested="cold", state="cold"),
        ownership="owned",
        verified=True,
        details={
            "fetched_bytes": fetched,
            "needed": {"divided": fetched // 2, "whole": fetched // 2},
            "tensor_bytes": 2 * fetched,
            "state_digest": DIGEST,
            **details,
        },
    )


def pairs(passes: int = 3, online=ONLINE, offline=OFFLINE, **details: Any) -> list[Sample]:
    """Both ways in each pass; a later pass is slower by a tenth for both."""
    found = []
    for number in range(1, passes + 1):
        slow = 1 + 0.1 * (number - 1)
        for way, stages in (("online", online), ("offline", offline)):
            slower = {name: value * slow for name, value in stages.items()}
            found.append(sample(way, number, slower, **details))
    return found


def run_of(folder: Path, samples: list[Sample]):
    return read_run(write_run(folder / "run", samples))


def test_the_saving_is_paired_and_explained(tmp_path: Path) -> None:
    (one,) = verdicts(run_of(tmp_path, pairs()))
    assert one.equal
    assert one.shown
    assert one.saving.median == pytest.approx(2.25 * 1.1)
    assert (one.saving.low, one.saving.high) == pytest.approx((2.25, 2.25 * 1.2))
    assert one.why is not None
    assert one.why.bytes_not_read == GIB // 2
    assert one.why.read == pytest.approx(1.1)  # half of the bytes at the online way's rate
    assert one.why.quantise == pytest.approx(1.1)
    assert one.why.read + one.why.quantise + one.why.rest == pytest.approx(one.saving.median)


def test_where_offline_does_less_there_is_no_break_even(tmp_path: Path) -> None:
    (one,) = verdicts(run_of(tmp_path, pairs(1)))
    assert one.break_even is None
    assert one.besides == pytest.approx(1.25)
    # at that rate, reading half a GiB less takes as long as all that isn't done besides
    assert one.even_reasons == pytest.approx((GIB // 2) / 1.25)


def test_where_offline_does_more_they_are_equal_at_a_rate(tmp_path: Path) -> None:
    heavy = {"read": 1.0, "layout": 4.0}
    (one,) = verdicts(run_of(tmp_path, pairs(1, offline=heavy)))
    assert one.break_even == pytest.approx((GIB // 2) / 2.0)
    assert one.even_reasons is None
    said = " ".join(w8a8_findings(run_of(tmp_path / "again", pairs(2, offline=heavy))))
    assert "equal on a storage that reads" in said
    assert "costs" in said


seconds = st.floats(0.001, 100)


@given(seconds, seconds, seconds, seconds)
def test_at_the_break_even_rate_both_take_as_long(
    tmp_path_factory: pytest.TempPathFactory, read: float, less: float, c: float, more: float
) -> None:
    folder = tmp_path_factory.mktemp("even")
    online = {"read": read, "quantise": c}
    offline = {"read": read / 2 + less / 1e6, "layout": c + more}
    (one,) = verdicts(run_of(folder, pairs(1, online=online, offline=offline)))
    if one.break_even is not None:
        totals = [
            way.fetched / one.break_even + way.besides_reading for way in (one.online, one.offline)
        ]
        assert totals[0] == pytest.approx(totals[1])


def test_shares_add_up_and_bound_what_a_remedy_saves(tmp_path: Path) -> None:
    (one,) = verdicts(run_of(tmp_path, pairs(1)))
    for way in (one.online, one.offline):
        assert sum(map(way.share, way.stages)) == pytest.approx(1)
    said = " ".join(sentences(one))
    assert "of read 1.00 s at most, of all others together 0.75 s" in said
    assert "read 57 %" in said


def test_an_interval_with_zero_in_it_shows_no_difference(tmp_path: Path) -> None:
    samples = pairs(2)
    samples[3] = sample("offline", 2, {"read": 9.0})
    run = run_of(tmp_path, samples)
    assert not verdicts(run)[0].shown
    assert "no difference shown" in w8a8_findings(run)[0]


def test_the_verdict_is_one_sentence_for_cold_and_warm_and_five_more_at_most(
    tmp_path: Path,
) -> None:
    warm = CacheRecord(requested="warm", state="warm")
    cold = [replace(one, details={**one.details, "compile_seconds": 4.0}) for one in pairs()]
    same = [replace(one, case=f"{one.case}/warm", cache=warm) for one in pairs(online=OFFLINE)]
    both = [*same, *cold]
    said = w8a8_findings(run_of(tmp_path, both))
    assert said[0] == (
        "w8a8: quantising offline saves 2.48 s of 4.40 s (2.25 to 2.70, range of 3), 56 %, cold on "
        "disk (one rank of tp8, nz in host memory); quantised while loading 1.93 s, offline 1.93 "
        "s, no difference shown (+0.00 s, 0.00 to 0.00, range of 3), warm on disk (one rank of tp8,"
        " nz in host memory)."
    )
    assert len(said) == 6
    assert all(text.count(". ") == 0 and text.endswith(".") for text in said)


def test_other_weights_are_no_verdict(tmp_path: Path) -> None:
    samples = pairs()
    samples[-1] = sample("offline", 3, OFFLINE, state_digest="other")
    run = run_of(tmp_path, samples)
    assert not verdicts(run)[0].equal
    said = w8a8_findings(run)
    assert "NO VERDICT" in said[0]
    assert not any("saves" in sentence for sentence in said)


def test_a_missing_digest_is_no_proof(tmp_path: Path) -> None:
    assert not verdicts(run_of(tmp_path, pairs(state_digest=None)))[0].equal


def test_samples_in_another_cache_state_are_left_out(tmp_path: Path) -> None:
    samples = [replace(one, cache=CacheRecord(requested="cold", state="mixed")) for one in pairs(1)]
    assert verdicts(run_of(tmp_path, samples)) == []


def test_a_smoke_run_says_nothing(tmp_path: Path) -> None:
    assert w8a8_findings(read_run(write_run(tmp_path / "r", pairs(), smoke=True))) == []


def test_what_engines_do_is_said_plainly(tmp_path: Path) -> None:
    said = w8a8_findings(run_of(tmp_path, pairs()))
    assert sum("No engine goes the online way" in sentence for sentence in said) == 1


def test_the_offline_way_alone_is_told_by_its_stages(tmp_path: Path) -> None:
    said = w8a8_findings(run_of(tmp_path, pairs()[1::2]))
    assert "no remedy for one stage saves more" in said[0]
    assert "No engine goes the online way" in said[1]


def test_the_same_size_and_ranks_project_to_what_was_measured(tmp_path: Path) -> None:
    (one,) = verdicts(run_of(tmp_path, pairs(1)))
    found = project(one, one.online.checkpoint, 8)
    assert found.online.alone == pytest.approx(one.online.total)
    assert found.offline.alone == pytest.approx(one.offline.total)
    assert found.online.together == pytest.approx(8 * one.online.total)
    assert found.quantised == one.offline.checkpoint
    assert project(one, one.offline.checkpoint, 8, of_quantised=True) == found


def test_a_projection_from_mostly_embeddings_says_so(tmp_path: Path) -> None:
    (one,) = verdicts(run_of(tmp_path, pairs(1)))
    whole = project(one, one.online.checkpoint, 8)
    assert whole.share == pytest.approx(1)
    assert not any("larger --size" in text for text in projected_sentences(whole))
    part = replace(whole, quantised=round(0.75 * whole.source))
    assert any("50 % were quantised" in text for text in projected_sentences(part))


@given(st.integers(1, 64), st.integers(1, 50))
def test_projections_grow_with_bytes_and_shrink_with_ranks(
    tmp_path_factory: pytest.TempPathFactory, tp: int, times: int
) -> None:
    (one,) = verdicts(run_of(tmp_path_factory.mktemp("p"), pairs(1)))
    base = project(one, one.online.checkpoint, tp)
    grown = project(one, times * one.online.checkpoint, tp)
    more = project(one, one.online.checkpoint, 2 * tp)
    assert grown.online.alone == pytest.approx(times * base.online.alone)
    assert more.online.alone < base.online.alone
    assert more.online.fetched > base.online.fetched / 2  # what each rank needs whole stays


@pytest.mark.parametrize(("nbytes", "tp"), [(0, 8), (GIB, 0), (-1, 1)])
def test_nothing_is_projected_to_nothing(tmp_path: Path, nbytes: int, tp: int) -> None:
    (one,) = verdicts(run_of(tmp_path, pairs(1)))
    with pytest.raises(ValueError, match="more than 0"):
        project(one, nbytes, tp)


def call(*args: str):
    return CliRunner().invoke(main, ["w8a8", *args])


def test_the_command_prints_one_document(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", pairs())
    done = call(str(folder), "--project-to", "41.27GiB", "--tp", "8", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    (one,) = found["verdicts"]
    assert one["saving"]["passes"] == 3
    assert one["online"]["stages"]["quantise"]["share"] == pytest.approx(0.25)
    (projection,) = found["projections"]
    assert projection["source_bytes"] == round(41.27 * GIB)
    assert projection["tp"] == 8
    assert projection["saves_alone"] > 0


def test_the_command_in_words(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", pairs())
    done = call(str(folder), "--project-to", "41.27GiB", "--of", "quantised")
    assert done.exit_code == 0, done.output
    said = " ".join(done.stdout.split())
    for words in ("offline saves", "No engine goes the online way", "41.27 GiB quantised"):
        assert words in said


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--project-to", "41 parsecs"), "--project-to"),
        (("--project-to", "0GiB"), "--project-to"),
        (("--tp", "8"), "--project-to"),
    ],
)
def test_wrong_options_are_said(tmp_path: Path, args: tuple[str, ...], words: str) -> None:
    folder = write_run(tmp_path / "run", pairs())
    done = call(str(folder), *args, "--json")
    assert done.exit_code == 2
    assert words in json.loads(done.stdout)["error"]


def test_exit_codes(tmp_path: Path) -> None:
    other = pairs(1)
    other[1] = sample("offline", 1, OFFLINE, state_digest="other")
    assert call(str(write_run(tmp_path / "differ", other))).exit_code == 1
    assert call(str(tmp_path / "absent")).exit_code == 2
    assert call(str(write_run(tmp_path / "empty", []))).exit_code == 3
