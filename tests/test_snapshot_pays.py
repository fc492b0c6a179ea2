"""When a snapshot pays: arithmetic, and the sentence under a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.page.terminal import render
from bench.record.records import CacheRecord, Run, Sample, Seconds, StorageRecord
from bench.record.summary import rows
from bench.words.snapshot_pays import break_even, pays, snapshot_pays

POSITIVE = st.floats(1e-3, 1e6)
DISK = 2_000_000_000


@given(POSITIVE, POSITIVE)
def test_the_first_start_that_has_won_it_back(cost: float, saved: float) -> None:
    starts = break_even(cost, saved)
    assert starts is not None
    assert starts >= 1
    assert starts * saved >= cost * (1 - 1e-9)
    assert starts == 1 or (starts - 1) * saved < cost * (1 + 1e-9)


@given(POSITIVE, st.floats(-1e6, 0))
def test_what_saves_nothing_never_pays(cost: float, saved: float) -> None:
    assert break_even(cost, saved) is None


@pytest.mark.parametrize(
    ("cost", "saved", "starts"), [(10, 1, 10), (10, 3, 4), (0, 1, 1), (9, 10, 1), (10, 0.1, 100)]
)
def test_by_hand(cost: float, saved: float, starts: int) -> None:
    assert break_even(cost, saved) == starts


def test_it_is_paired_by_pass() -> None:
    """A storage that is twice as slow in one pass says nothing about the other one's loader."""
    found = pays(
        {1: 1.0, 2: 2.0, 3: 1.0, 4: 9.0},
        {1: 3.0, 2: 6.0, 3: 3.1},
        cost=20.0,
        disk_bytes=DISK,
        ceiling={1: 2.0, 2: 1.0, 3: 2.0},
    )
    assert found is not None
    assert found.passes == 3
    assert (found.restore, found.other) == (1.0, 3.1)
    assert found.saved == pytest.approx(2.1)
    assert (found.low, found.high) == (2.0, 4.0)
    assert found.starts == 10
    assert found.bound == pytest.approx(1.0)
    assert pays({1: 1.0}, {2: 1.0}, cost=1, disk_bytes=1, ceiling={}) is None


def sample(
    loader: str, number: int, seconds: float, *, phase: str = "disk_to_host", **more: Any
) -> Sample:
    return Sample(
        case=f"{phase}/{loader}",
        phase=phase,
        loader=loader,
        model="m",
        size=DISK,
        dtype="bfloat16",
        storage=StorageRecord(label="nvme"),
        pass_number=number,
        status="ok",
        bytes=DISK,
        seconds=Seconds(total=seconds, read=seconds),
        cache=CacheRecord(requested="cold", state="cold"),
        ownership="borrowed",
        **more,
    )


def run_of(
    restore: float,
    others: Mapping[tuple[str, str], float],
    *,
    told: bool = True,
    into: str = "tensors",
    layout: str = "tp1",
) -> Run:
    counts = {"made_ms": 12_000, "file_bytes": DISK} if told else {}
    samples = []
    for number in (1, 2):
        samples.append(sample("snapshot", number, restore, details={"counts": counts}))
        samples.append(sample("direct-ring", number, 0.9, phase="ceiling"))
        for (phase, loader), seconds in others.items():
            how = {"options": {"into": into}, "layout": layout} if phase == "assemble" else {}
            samples.append(sample(loader, number, seconds, phase=phase, **how))
    return Run(path=Path("r/records.jsonl"), plan=None, host=None, samples=tuple(samples))


def said(run: Run) -> list[str]:
    return snapshot_pays(run, rows(run))


def test_against_the_best_loader_of_the_run() -> None:
    run = run_of(1.0, {("disk_to_host", "slow"): 9.0, ("disk_to_host", "direct"): 3.0})
    (sentence,) = said(run)
    assert "takes 1.000 s, 2.000 s less than loading by direct, which only reads" in sentence
    assert "made once in 12.0 s, on 1.86 GiB of disk: it pays from start 6 on." in sentence
    assert "0.900 s here, 90 % of what it takes" in sentence
    assert sentence in " ".join(render(run).split())


def test_against_assembling_where_that_was_measured() -> None:
    others = {
        ("disk_to_host", "direct"): 1.5,
        ("assemble", "stock"): 9.0,
        ("assemble", "overlapped"): 4.0,
    }
    (sentence,) = said(run_of(1.0, others, into="parameters"))
    assert "3.000 s less than assembling by overlapped (" in sentence
    assert "from start 4 on" in sentence


def test_whole_tensors_and_other_shares_of_the_model_are_no_assembly() -> None:
    others = {("disk_to_host", "direct"): 1.5, ("assemble", "overlapped"): 4.0}
    for how in ({"into": "tensors"}, {"into": "parameters", "layout": "tp4"}):
        (sentence,) = said(run_of(1.0, others, **how))
        assert "0.500 s less than loading by direct" in sentence


def kept_run(restore: float, others: Mapping[str, float], phase: str, **options: str) -> Run:
    """A run of a phase alone: what was restored, and the other ways to the same."""
    counts = {"made_ms": 12_000, "file_bytes": DISK}
    samples = [sample("direct-ring", number, 0.9, phase="ceiling") for number in (1, 2)]
    for number in (1, 2):
        how: dict[str, Any] = {"phase": phase, "options": options, "layout": "tp8"}
        samples.append(sample("restored", number, restore, details={"counts": counts}, **how))
        for loader, seconds in others.items():
            samples.append(sample(loader, number, seconds, **how))
        # other ends than those of what was restored: none is a way to the same
        samples.append(sample("fast", number, 0.01, **{**how, "options": {"into": "nowhere"}}))
        draft = {**options, "part": "draft"}
        samples.append(sample("small", number, 0.01, **{**how, "options": draft}))
        samples.append(sample("less", number, 0.01, **{**how, "layout": "tp16"}))
    for number, one in enumerate(samples):
        samples[number] = replace(
            one, case=f"{one.case}/{one.layout}/{sorted(one.options.items())}"
        )
    return Run(path=Path("r/records.jsonl"), plan=None, host=None, samples=tuple(samples))


def test_a_restored_state_against_the_fastest_way_to_the_same() -> None:
    (sentence,) = said(
        kept_run(1.0, {"stock": 9.0, "overlapped": 4.0}, "assemble", into="parameters")
    )
    assert "restoring the state of tp8 takes 1.000 s, 3.000 s less than assembling by" in sentence
    assert "overlapped" in sentence
    assert "it pays from start 4 on" in sentence
    assert "0.900 s here, 90 % of what it takes" in sentence
    (sentence,) = said(kept_run(1.0, {"online": 4.0, "offline": 2.0}, "w8a8", into="nz"))
    assert "the state of tp8, int8 and scales in nz takes 1.000 s, 1.000 s less than" in sentence
    assert "offline" in sentence


def test_a_restored_state_that_is_no_faster() -> None:
    (sentence,) = said(
        kept_run(2.0, {"stock": 9.0, "overlapped": 2.0}, "assemble", into="parameters")
    )
    assert "it never pays" in sentence
    assert said(kept_run(1.0, {}, "assemble", into="parameters")) == []


def test_a_draft_model_is_no_other_way_to_a_snapshot() -> None:
    run = run_of(1.0, {("assemble", "overlapped"): 4.0}, into="parameters")
    draft = [
        replace(
            one, case="draft", options={**one.options, "part": "draft"}, seconds=Seconds(total=0.1)
        )
        for one in run.samples
        if one.phase == "assemble"
    ]
    (sentence,) = said(replace(run, samples=(*run.samples, *draft)))
    assert "3.000 s less than assembling by overlapped (" in sentence


def test_it_may_never_pay() -> None:
    (sentence,) = said(run_of(2.0, {("disk_to_host", "direct"): 1.5}))
    assert "0.500 s more than loading by direct" in sentence
    assert "it never pays" in sentence


def test_nothing_is_said_without_figures() -> None:
    assert said(run_of(1.0, {("disk_to_host", "direct"): 2.0}, told=False)) == []
    assert said(run_of(1.0, {})) == []
