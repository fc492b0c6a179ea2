"""A verdict per loader between storages, and whether staging pays: only what was shown is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.page.terminal import render
from bench.record.records import Sample, StorageRecord
from bench.record.summary import rows
from bench.words.between import storages_compared
from bench.words.staged import staging_pays
from tests.tiny_report import NET, load, made_run

SHM = StorageRecord(label="staged-tmpfs", file_system="tmpfs", mount="/dev/shm")


def both(here: list[float], there: list[float], **more: Any) -> list[Sample]:
    found = [load("a", rate, number, **more) for number, rate in enumerate(here, 1)]
    found += [load("a", rate, n, storage=NET, **more) for n, rate in enumerate(there, 1)]
    return found


def test_each_loader_gets_a_verdict_paired_by_pass() -> None:
    """The second pass is half as fast on both: the ratio is the same."""
    samples = [*both([2.0, 1.0, 2.2], [1.0, 0.5, 1.0]), load("b", 1.0)]
    (said,) = storages_compared(rows(made_run(*samples)))
    assert said == "a, cold: nvme is 2.00 x (2.00 to 2.20, range of 3) as fast as net."
    assert said in " ".join(render(made_run(*samples)).split())


def test_no_difference_shown_where_the_range_holds_one() -> None:
    (said,) = storages_compared(rows(made_run(*both([2.0, 0.9], [1.0, 1.0]))))
    assert said.startswith("a, cold: nvme leads, but no difference shown (1.45 x, 0.90 to 2.00")
    assert said.endswith("to net.")


def test_the_noise_of_both_storages_stands_beside() -> None:
    samples = both([2.0, 2.0], [1.0, 1.0])
    samples += both([2.1, 1.9], [1.3, 0.8], options={"twin": True})
    said = storages_compared(rows(made_run(*samples)))
    assert said[1] == (
        "Noise beside them, cold: net 1.05 x (0.80 to 1.30, range of 2), nvme 1.00 x (0.95 to "
        "1.05, range of 2)."
    )


def test_states_kinds_and_thread_counts_are_not_mixed_up() -> None:
    samples = [
        load("a", 2.0),
        load("a", 1.0, storage=NET, cache="warm"),
        load("b", 2.0, threads=1),
        load("b", 1.0, storage=NET, threads=2),
        load("c", 2.0, state="mixed"),
        load("c", 1.0, storage=NET),
        load("d", 2.0, state="unverified"),
        load("d", 1.0, storage=NET, state="unverified"),
        replace(load("e", 2.0), bytes=1000),
        replace(load("e", 1.0, storage=NET), bytes=1000),
    ]
    assert storages_compared(rows(made_run(*samples))) == []


def test_three_storages_are_held_against_the_best() -> None:
    samples = [*both([1.0], [2.0]), load("a", 4.0, storage=SHM)]
    said = storages_compared(rows(made_run(*samples)))
    assert [one.partition(": ")[2] for one in said] == [
        "staged-tmpfs was 2.00 x as fast, in one pass (no spread known), as net.",
        "staged-tmpfs was 4.00 x as fast, in one pass (no spread known), as nvme.",
    ]


def copied(seconds: float, number: int = 1) -> Sample:
    made = load("copy", 1 / seconds, number, ownership="storage", options={"to": SHM.label})
    return replace(made, phase="stage", case=made.case.replace("disk_to_host", "stage"))


def staged(
    copy: list[float], direct: list[float], there: list[float], loader: str = "a"
) -> list[str]:
    samples = [copied(seconds, number) for number, seconds in enumerate(copy, 1)]
    samples += [load("a", 1 / seconds, number) for number, seconds in enumerate(direct, 1)]
    samples += [
        load(loader, 1 / seconds, number, storage=SHM, cache="warm")
        for number, seconds in enumerate(there, 1)
    ]
    run = made_run(*samples)
    return staging_pays(run, rows(run))


@pytest.mark.parametrize(
    ("copy", "direct", "there", "said"),
    [
        ([3.1], [1.7], [0.9], "takes 3.10 s, saves 0.80 s a load: pays from the 4th load on."),
        ([0.1], [1.7], [0.9], "takes 0.10 s, saves 0.80 s a load: pays from the 1st load on."),
        ([3.0, 9.0], [2.0, 2.0], [1.0, 1.0], "pays from the 7th load on (4 to 10 in 2 passes)."),
        ([3.0], [1.0], [1.5], "costs 0.50 s more a load: never pays here (in 1 pass)."),
        ([3.0, 3.0], [1.0, 2.0], [1.5, 1.0], "no gain shown (it pays 1 times in 2 passes)."),
        ([10.5], [2.0], [1.0], "pays from the 11th load on."),
        ([21.5], [2.0], [1.0], "pays from the 22nd load on."),
    ],
)
def test_staging_pays_from_a_load_on_or_never(
    copy: list[float], direct: list[float], there: list[float], said: str
) -> None:
    (sentence,) = staged(copy, direct, there)
    assert sentence.startswith("a from nvme, owned: staging to staged-tmpfs takes ")
    assert sentence.endswith(said)


def test_another_loader_is_named_where_the_best_one_cannot_load_there() -> None:
    (sentence,) = staged([3.1], [1.7], [0.9], loader="b")
    assert sentence.startswith("a from nvme, b from staged-tmpfs, owned: staging to")


def test_without_a_pass_in_common_nothing_is_said() -> None:
    samples = [copied(1.0, 1), load("a", 1.0, 2), load("a", 2.0, 3, storage=SHM, cache="warm")]
    run = made_run(*samples)
    assert staging_pays(run, rows(run)) == []
    assert staged([], [1.0], [1.0]) == []
