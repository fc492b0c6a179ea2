"""The report's sentences: winners, noise, contradictions, limits, stores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.page.terminal import headline, render
from bench.record.records import Run, Sample, StorageRecord
from bench.record.stats import BOOTSTRAP_FROM
from bench.record.summary import Row, ceilings, noise, rows
from bench.words import findings
from bench.words.findings import its_own_prefetch
from bench.words.limits_seen import limit
from tests.tiny_report import (
    HOST,
    ceiling,
    load,
    made_run,
)

# Sentences.


def pair_of(ratios: list[float]) -> list[Row]:
    samples = [load("slow", 1.0, number) for number in range(1, len(ratios) + 1)]
    samples += [load("fast", rate, number) for number, rate in enumerate(ratios, 1)]
    return rows(made_run(*samples))


def test_a_winner_in_every_pass_is_named_with_its_ratio_and_range() -> None:
    (said,) = findings.winners(pair_of([1.5, 1.2, 1.4]))
    assert "fast is 1.40 x (1.20 to 1.50, range of 3) as fast as slow." in said


def test_no_difference_shown_where_the_bounds_contain_one() -> None:
    (said,) = findings.winners(pair_of([1.5, 0.9, 1.4]))
    assert "no difference shown" in said
    assert " is 1." not in said


def test_one_pass_shows_no_spread() -> None:
    (said,) = findings.winners(pair_of([1.5]))
    assert "in one pass (no spread known)" in said


def test_eight_passes_give_an_interval() -> None:
    (said,) = findings.winners(pair_of([1.2, 1.3] * (BOOTSTRAP_FROM // 2)))
    assert f"95 % interval of {BOOTSTRAP_FROM}" in said


def test_contestants_without_a_common_pass_are_not_compared() -> None:
    made = rows(made_run(load("a", 2.0, 1), load("b", 1.0, 2)))
    assert "has no pass in common with" in findings.winners(made)[0]


def test_one_loader_alone_wins_nothing() -> None:
    assert findings.winners(rows(made_run(load("a", 2.0)))) == []
    twin = load("a", 2.0, options={"twin": True})
    assert findings.winners(rows(made_run(load("a", 2.0), twin))) == []


def test_the_noise_is_the_ratio_of_the_twins() -> None:
    twin = {"twin": True}
    run = made_run(
        *(load("a", 1.0, n) for n in (1, 2)),
        *(load("a", rate, n, options=twin) for n, rate in ((1, 1.1), (2, 0.9))),
        load("a", 5.0, 1, cache="warm"),
    )
    ((row, pair),) = noise(rows(run))
    assert row.title == "a"
    assert (pair.n, round(pair.low, 3), round(pair.high, 3)) == (2, 0.9, 1.1)


@pytest.mark.parametrize(("rate", "said"), [(1.0, False), (1.02, False), (1.2, True)])
def test_a_row_above_its_ceiling_is_a_contradiction_not_a_triumph(rate: float, said: bool) -> None:
    run = made_run(ceiling("owned-read", 1.0), load("example", rate))
    (row,) = rows(run)
    assert bool(findings.contradictions([row])) == said
    assert (limit(row, ceilings(run), 2) == "nothing: above its ceiling") == said
    if said:
        assert "120 % of its ceiling" in render(run)


def test_few_passes_are_said_once_and_not_in_smoke_mode() -> None:
    assert findings.few_passes(made_run(passes=1))[0].startswith("1 pass: ")
    assert findings.few_passes(made_run(passes=7))[0].startswith("7 passes: ")
    assert findings.few_passes(made_run(passes=BOOTSTRAP_FROM)) == []
    assert findings.few_passes(made_run(passes=1, smoke=True)) == []


def test_smoke_says_that_its_figures_mean_nothing() -> None:
    assert "(smoke: these figures mean nothing)" in headline(made_run(smoke=True))


def test_c86_the_headline_names_the_machine_and_its_storages() -> None:
    assert "2 cores of Made-up Processor" in headline(made_run())
    assert "nvme: xfs on nvme0n1, net: nfs4 on no disk" in headline(made_run())
    other = {**HOST, "host": {**HOST["host"], "cpu": {"model": "Another"}}}
    assert headline(replace(made_run(), host=other)) != headline(made_run())


# What limits a load.


def limited(*samples: Sample, cores: int = 2) -> str:
    run = made_run(*samples)
    (row,) = rows(run)
    return limit(row, ceilings(run), cores)


def busy(sample: Sample, share: float, system: float = 0.2) -> Sample:
    """With that share of two cores at work, that part of it in the kernel."""
    assert sample.seconds.total is not None
    cpu = share * 2 * sample.seconds.total
    return replace(sample, cpu_seconds=cpu, system_seconds=system * cpu)


RING, OWNED = ceiling("direct-ring", 2.0), ceiling("owned-read", 1.0)
TOUCH = ceiling("first-touch", 1.2, storage=None, cache="none")


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([RING, load("x", 1.9, ownership="borrowed")], "storage"),
        ([RING, OWNED, TOUCH, load("x", 0.9)], "first touch of memory"),
        ([RING, OWNED, load("x", 0.95)], "reading into fresh memory"),
        ([RING, OWNED, busy(load("x", 0.5), 0.95)], "CPU (the program)"),
        ([RING, OWNED, busy(load("x", 0.5), 0.95, system=0.9)], "CPU (faults and copies)"),
        ([RING, OWNED, busy(load("x", 0.5), 0.5)], "one core (the program)"),
        ([RING, OWNED, busy(load("x", 0.5), 0.1)], "too few reads in flight"),
        (
            [ceiling("owned-read", 1.0, cache="warm"), busy(load("x", 0.5, cache="warm"), 0.1)],
            "waiting (CPU 10 % busy)",
        ),
        (
            [
                ceiling("memory-read", 1.0, storage=None, cache="none"),
                load("x", 0.9, cache="warm", ownership="mapped"),
            ],
            "memory bandwidth",
        ),
    ],
)
def test_what_limits_a_load(samples: list[Sample], expected: str) -> None:
    assert limited(*samples) == expected


# Stores.

WEB = StorageRecord(label="web", file_system="https")


def from_web(number: int, rate: float, **details: object) -> Sample:
    counts = {"requests": 64, "bytes": 1_000_000_000, "retries": 1, "busy_us": 9, "wait_us": 0}
    told = {"counts": counts, "settings": {"chunk_mib": 16}, "files": 4, **details}
    return load("remote", rate, number, cache="none", storage=WEB, threads=16, details=told)


def test_a_store_is_explained_by_its_median_pass_and_counts_all_retries() -> None:
    (said,) = findings.from_stores(
        made_run(*[from_web(n, rate) for n, rate in enumerate((1, 3, 2))])
    )
    assert said.startswith(
        "remote on web: 2 GB/s in 64 requests of up to 16 MiB, 16 at a time, from 4 files: "
    )
    assert said.endswith("Retries in 3 passes: 3.")


@pytest.mark.parametrize("lacking", [{"counts": {}}, {"settings": {}}, {"counts": {"reads": 1}}])
def test_what_counts_other_things_is_no_store(lacking: dict[str, object]) -> None:
    assert findings.from_stores(made_run(from_web(1, 1.0, **lacking))) == []


def test_a_store_is_titled_remote_with_what_cold_means_there() -> None:
    run = made_run(from_web(1, 1.0))
    run = replace(run, host={**HOST, "stores": {"web": "https"}, "coldness": {"web": "not cold"}})
    text = render(run)
    assert "web, remote: not cold -> memory of its own (owned)" in text
    assert "web: a store (https)" in headline(run)


def test_the_engines_own_prefetch_rule_is_told_for_each_folder() -> None:
    """C93: a network file system is what it is, whatever the engine takes it for."""
    run = Run(
        path=Path("records.jsonl"),
        plan={"size": 8 << 30},
        host={
            "host": {
                "memory": {"usable_bytes": 100 << 30},
                "storage": {
                    "fast": {"fs_type": "ext4"},
                    "shared": {"fs_type": "nfs4"},
                    "ceph": {"fs_type": "ceph"},
                    "nothing": {"fs_type": None},
                },
            }
        },
        samples=(),
    )
    fast, shared, ceph = its_own_prefetch(run)
    assert "fast: vLLM wouldn't prefetch by itself here: ext4" in fast
    assert "shared: vLLM (0.20 and later) prefetches by itself here: nfs4" in shared
    assert "it may well be one" in ceph
    assert its_own_prefetch(Run(path=Path("x"), plan=None, host=None, samples=())) == []
