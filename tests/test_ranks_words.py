"""Who failed, and what several ranks' stamps say together: arithmetic and words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from bench.ranks.failure import Event, Stuck, Who, blame, ended_by_torchrun, exit_codes, hung
from bench.ranks.job import WAYS
from bench.ranks.ready import ways_of
from bench.ranks.times import rank_record, summed_counters, together

# As torch 2.13's torchrun says it.
REPORT = """\
W1130 16:36:12.804000 14849 torch/distributed/elastic/multiprocessing/api.py:1028] Sending \
process 14860 closing signal SIGTERM
E1130 16:36:12.821000 14849 torch/distributed/elastic/multiprocessing/api.py:1002] failed \
(exitcode: -9) local_rank: 1 (pid: 14861) of binary: /usr/bin/python3
Failures:
[1]:
  time      : 2026-11-30_16:36:12
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 14860)  (SIGTERM)
  error_file: <N/A>
Root Cause (first observed failure):
[0]:
  time      : 2026-11-30_16:36:12
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 14861)  (SIGKILL)
"""
ZERO = Who(rank=0, host="a", pid=14860)
ONE = Who(rank=1, host="a", pid=14861)


def test_torchruns_report_is_understood() -> None:
    assert exit_codes(REPORT) == {14861: -9, 14860: -15}
    assert ended_by_torchrun(REPORT) == {14860}
    assert exit_codes("something else") == {}


def test_a_killed_rank_is_named_with_its_signal() -> None:
    text = blame([Event(who=ONE), Event(who=ZERO)], REPORT)
    assert text.startswith("rank 1 (a, pid 14861) ended by SIGKILL (out of memory, or killed")
    assert text.endswith("with it ended rank 0")


def test_a_rank_that_lost_its_peer_first_isnt_blamed() -> None:
    lost = Event(who=ZERO, text="PeerError: the collective failed", peer=True)
    assert blame([lost, Event(who=ONE)], REPORT).startswith("rank 1 (a, pid 14861) ended by")


def test_a_rank_that_torchrun_ended_isnt_blamed() -> None:
    lost = Event(who=ONE, text="PeerError: the collective failed", peer=True)
    text = blame([lost, Event(who=ZERO)], REPORT)
    assert text.startswith("rank 1 (a, pid 14861): PeerError")
    assert "look at the others" in text


def test_a_rank_that_raised_says_what() -> None:
    raised = Event(who=ZERO, text="TruncatedError: model-00002: 5 bytes\nmore")
    text = blame([raised, Event(who=ONE)], REPORT)
    assert text.startswith("rank 0 (a, pid 14860): TruncatedError: model-00002: 5 bytes\\nmore")


@pytest.mark.parametrize(
    ("code", "words"),
    [("-11", "by SIGSEGV"), ("-7", "by SIGBUS (a mapped file"), ("3", "with exit code 3")],
)
def test_every_kind_of_end_has_words(code: str, words: str) -> None:
    report = f"failed (exitcode: {code}) local_rank: 1 (pid: 14861) of binary: x"
    assert f"rank 1 (a, pid 14861) ended {words}" in blame([Event(who=ONE)], report)


def test_without_torchruns_report_the_rank_is_named_all_the_same() -> None:
    assert blame([Event(who=ONE)], "") == "rank 1 (a, pid 14861) ended without a word"
    assert blame([], "") == "the ranks ended, and none of them said why"


def test_a_stopped_rank_is_named_not_those_that_wait_for_it() -> None:
    stuck = [
        Stuck(who=ZERO, stage="in exchange 4", rounds=4, state="S"),
        Stuck(who=ONE, stage="in exchange 4", rounds=4, state="T"),
    ]
    text = hung(stuck, 30.0, 2, 4)
    assert text.startswith("no end within 30 s: rank 1 (a, pid 14861): in exchange 4, stopped by")
    assert "1 rank waited for it" in text
    assert "2 of 4 ranks were done" in text


def test_a_rank_that_is_behind_is_named() -> None:
    stuck = [
        Stuck(who=ZERO, stage="in exchange 4", rounds=4, state="S"),
        Stuck(who=ONE, stage="reading", rounds=3, state="D"),
    ]
    text = hung(stuck, 0.5, 0, 2)
    assert "within 0.5 s: rank 1 (a, pid 14861): reading, waiting for the storage" in text


def test_many_stuck_ranks_are_counted() -> None:
    every = [
        Stuck(who=Who(rank=n, host="a", pid=n + 1), stage="reading", state=None) for n in range(9)
    ]
    text = hung(every, 60.0, 0, 9)
    assert "rank 3 (a, pid 4): reading; and 5 other ranks; 0 of 9" in text


def report(began: float, ended: float, **given: Any) -> dict[str, Any]:
    counters = {"device_read_bytes": 7, "cpu_seconds": 0.5}
    stamps = dict.fromkeys(("open", "allocate", "read", "exchange", "transfer"), 0.0)
    return {
        "began": began, "ended": ended, "total": ended - began, "bytes": 100, "asked": None,
        "counters": counters, "peak_rss_bytes": None, **stamps, **given,
    }  # fmt: skip


@given(some.lists(some.tuples(some.floats(0, 9), some.floats(0, 9)), min_size=1, max_size=8))
def test_the_window_is_from_the_earliest_start_to_the_latest_end(
    times: list[tuple[float, float]],
) -> None:
    zero = min(start for start, _ in times)
    ranks = [
        rank_record(
            report(1000 + start, 1000 + start + length),
            rank=number, host="a", pid=1, zero=1000 + zero, charged=True,
        )
        for number, (start, length) in enumerate(times)
    ]  # fmt: skip
    found = together(ranks)
    ends = [start + length - zero for start, length in times]
    assert found["last_done"] == pytest.approx(max(ends), abs=1e-6)
    assert found["first_done"] == pytest.approx(min(ends), abs=1e-6)
    assert found["bytes"] == 100 * len(times)
    assert found["fetched_bytes"] == 7 * len(times)


def test_what_one_rank_cant_tell_isnt_counted_as_nothing() -> None:
    def record(charged: bool) -> dict[str, Any]:
        return rank_record(report(1.0, 2.0), rank=0, host="a", pid=1, zero=1.0, charged=charged)

    assert record(False)["fetched"] is None
    assert together([record(True), record(False)])["fetched_bytes"] is None
    unknown = report(1.0, 2.0, counters={"device_read_bytes": None, "cpu_seconds": 1.0})
    summed = summed_counters([report(1.0, 2.0), unknown])
    assert summed == {"device_read_bytes": None, "cpu_seconds": 1.5}


@pytest.mark.parametrize("asked", [(), ("all",), ("scatter", "all"), WAYS[::-1]])
def test_all_ways_may_be_asked_for_by_a_word(asked: tuple[str, ...]) -> None:
    assert ways_of(asked) == list(WAYS)


def test_ways_that_were_named_come_once_and_in_their_own_order() -> None:
    assert ways_of(("scatter", "read-all", "scatter")) == ["read-all", "scatter"]
