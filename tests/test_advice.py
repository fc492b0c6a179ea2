"""All advice for a run: how much, in which order, in which words."""

from __future__ import annotations

from dataclasses import replace

from bench.advice.contract import Saving, see
from bench.advice.findings import KINDS, MOST, advise, first_words, saving_words
from bench.advice.start import Start
from tests.tiny_advice import MIB, MMAP, everything, times
from tests.tiny_report import load, made_run


def test_at_most_seven_and_those_first_that_save_most() -> None:
    run = everything()
    assert all(kind(see(run)) is not None for kind in KINDS)
    told = advise(run)
    assert len(told) == MOST < len(KINDS)
    saved = [one.saving.seconds for one in told if one.saving]
    assert saved == sorted(saved, reverse=True)
    assert len(saved) == MOST


def test_nothing_is_said_without_evidence() -> None:
    for run in (made_run(), made_run(*times("pt", 1.0)), replace(made_run(), host=None, plan=None)):
        assert advise(run) == []
    one_pass = [load("safetensors-mmap", 1.0, **MMAP), load("pt-threads", 9.0, threads=2)]
    assert advise(made_run(*one_pass)) == []


def test_nothing_is_concluded_from_a_smoke_run_or_a_tiny_one() -> None:
    run = everything()
    for change in ({"smoke": True}, {"size": 2 * MIB}):
        assert advise(replace(run, plan={**(run.plan or {}), **change})) == []


def test_a_saving_says_its_bounds_and_what_they_are() -> None:
    saved = Saving(seconds=1.2, of=3.4, low=0.9, high=1.5, n=3, kind="range")
    assert saving_words(saved) == "saves 1.20 s of 3.40 s (0.90 to 1.50, range of 3 passes)"
    assert saving_words(replace(saved, at_most=True)).startswith("saves at most 1.20 s")
    assert saving_words(None) == "what it saves wasn't measured"


def test_the_bound_of_a_start() -> None:
    assert "more than 20 %" in Start(weights=20.0, wall=100.0).bound()
    assert "20.0 s: no advice" in Start(weights=20.0, wall=None).bound()
    assert "no time for the weights" in Start(weights=None, wall=5.0).bound()


def test_the_first_of_a_run_stand_under_its_table() -> None:
    lines = first_words(everything())
    assert len(lines) == 4
    assert all(line.startswith("To do: ") for line in lines[:3])
    assert lines[3] == "4 more, and what each costs: coldload advise runs/made-up"
    assert first_words(made_run(*times("pt", 1.0))) == []
