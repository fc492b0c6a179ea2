"""Advice on what is made once, before any start: with evidence, and silent without."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.advice import quantise_before, snapshot, staging
from bench.record.records import Seconds
from tests.tiny_advice import assembled, copied, found, kept, run_on, said, times, w8a8
from tests.tiny_report import NET, NVME, load


def test_a_checkpoint_quantised_beforehand() -> None:
    both = [*w8a8("online", 1.0), *w8a8("offline", 4.0)]
    advice = said(quantise_before.find, run_on(both))
    assert advice.do == (
        "coldload quantize /path/to/model /path/to/quantised --format compressed-tensors",
        "vllm serve /path/to/quantised   # its config.json names the format",
    )
    assert "Cold on nvme, one rank of tp8" in advice.seen
    assert "64.00 MiB more on the disk" in advice.cost
    assert advice.saving is not None
    assert advice.saving.seconds == pytest.approx(0.75 / 1.02)
    assert advice.saving.of == pytest.approx(1 / 1.02)


def test_a_checkpoint_quantised_beforehand_only_where_it_saves_and_comes_to_the_same() -> None:
    assert found(quantise_before.find, run_on(w8a8("online", 1.0))) is None
    slower = [*w8a8("online", 1.0), *w8a8("offline", 0.9)]
    assert found(quantise_before.find, run_on(slower)) is None
    other = [*w8a8("online", 1.0), *w8a8("offline", 4.0, digest="e")]
    assert found(quantise_before.find, run_on(other)) is None
    warm = [*w8a8("online", 1.0, cache="warm"), *w8a8("offline", 9.0, cache="warm")]
    cold = [*w8a8("online", 1.0), *w8a8("offline", 1.5)]
    assert said(quantise_before.find, run_on([*warm, *cold])).seen.startswith("Cold on nvme")


def test_a_snapshot() -> None:
    advice = said(snapshot.find, run_on([*kept(2.0), *assembled(1.0)]))
    assert advice.do[0] == "coldload snapshot /path/to/model /path/to/snapshot --tp 8"
    assert "no engine has one" in advice.do[1]
    assert not any("sharded" in line for line in advice.do)
    assert "3.00 MiB more on the disk" in advice.cost
    assert "pays from start 11 on" in advice.cost  # 5 s at 0.49 s each
    assert advice.saving is not None
    assert advice.saving.seconds == pytest.approx(0.5 / 1.02)
    assert found(snapshot.find, run_on(kept(2.0))) is None
    assert found(snapshot.find, run_on([*kept(0.9), *assembled(1.0)])) is None
    untold = [replace(s, details={}) for s in kept(2.0)]
    assert found(snapshot.find, run_on([*untold, *assembled(1.0)])) is None


def test_the_engines_own_format_only_where_this_run_has_loaded_it() -> None:
    samples = [*kept(2.0), *assembled(1.0)]
    theirs = times("sharded-state", 1.0, ownership="mapped", layout="tp8")
    advice = said(snapshot.find, run_on([*samples, *theirs]))
    assert advice.do == (
        "coldload snapshot /path/to/model /path/to/snapshot --tp 8 --format sharded-state",
        "vllm serve /path/to/snapshot --load-format sharded_state",
    )
    refused = [
        replace(s, status="failed", reason="refused", seconds=Seconds(), bytes=None) for s in theirs
    ]
    elsewhere = times("sharded-state", 1.0, ownership="mapped", layout="tp2")
    for more in (refused, elsewhere):
        lines = said(snapshot.find, run_on([*samples, *more])).do
        assert not any("sharded" in line for line in lines)


def test_a_copy_on_faster_storage() -> None:
    slow, quick = times("pt", 0.1, storage=NET), times("pt", 2.0, storage=NVME)
    advice = said(staging.find, run_on([*copied(20.0), *slow, *quick]))
    assert advice.title == "Copy the model from net to nvme first"
    assert advice.do == ("cp -r /path/to/model /path/to/copy/", "vllm serve /path/to/copy/model")
    assert "pays from the 3rd load on" in advice.cost
    assert advice.saving is not None
    assert advice.saving.seconds == pytest.approx(9.5 / 1.02)
    assert found(staging.find, run_on([*slow, *quick])) is None
    slower = times("pt", 0.09, storage=NVME)
    assert found(staging.find, run_on([*copied(20.0), *slow, *slower])) is None
    once = [load("pt", 9.0, 3, storage=NET)]  # in one pass of three it doesn't pay
    assert found(staging.find, run_on([*copied(20.0), *slow[:2], *once, *quick])) is None
