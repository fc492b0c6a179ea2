"""Advice on how to read: each kind with evidence, and silent without."""

from __future__ import annotations

from typing import Any

import pytest

from bench.advice import loader, storage, threads, useless_threads, warm_up
from tests.tiny_advice import GIB, MIB, MMAP, found, run_on, said, times
from tests.tiny_report import NET, NVME


def test_another_loader() -> None:
    slow, quick = times("safetensors-mmap", 1.0, **MMAP), times("pt-threads", 2.0, threads=2)
    advice = said(loader.find, run_on([*slow, *quick]))
    assert "--load-format pt" in advice.do[0]
    assert '"num_threads": 2' in advice.do[0]
    assert "pt-threads, 2 threads 2.04 GB/s" in advice.seen
    assert "*.pt or *.bin" in advice.cost
    assert advice.saving is not None
    assert advice.saving.seconds == pytest.approx(0.5 / 1.02)
    assert advice.saving.of == pytest.approx(1 / 1.02)
    same = times("pt-threads", 1.0, threads=2)
    assert found(loader.find, run_on([*slow, *same])) is None
    assert found(loader.find, run_on(quick)) is None  # nothing to compare with
    ours = times("parallel", 9.0, threads=2)  # the engine has no such way
    assert found(loader.find, run_on([*slow, *ours])) is None


def test_another_loader_only_where_this_version_of_the_engine_has_it() -> None:
    run = run_on([*times("safetensors-mmap", 1.0, **MMAP), *times("pt-threads", 2.0, threads=2)])
    assert found(loader.find, run, engine=(0, 10, 2)) is not None
    assert found(loader.find, run, engine=(0, 9)) is None


def test_on_a_network_the_usual_way_reads_ahead_by_itself() -> None:
    far: dict[str, Any] = {"storage": NET, "ownership": "mapped"}
    samples = [
        *times("safetensors-mmap", 0.1, **far),
        *times("safetensors-prefetch", 0.4, threads=8, **far),
        *times("safetensors-eager", 0.8, storage=NET),
    ]
    advice = said(loader.find, run_on(samples))
    assert "instead of safetensors-prefetch" in advice.title


def test_another_number_of_threads() -> None:
    swept = [
        s
        for n, rate in ((1, 1.0), (2, 2.0), (8, 1.2))
        for s in times("pt-threads", rate, threads=n)
    ]
    advice = said(threads.find, run_on(swept))
    assert advice.title == "pt-threads: 2 threads, not 8"
    assert '"num_threads": 2' in advice.do[0]
    assert found(threads.find, run_on(times("pt-threads", 1.0, threads=2))) is None
    best = [s for n, rate in ((1, 1.0), (8, 2.0)) for s in times("pt-threads", rate, threads=n)]
    assert found(threads.find, run_on(best)) is None


def test_threads_that_only_make_views() -> None:
    plain = times("safetensors-mmap", 2.0, **MMAP)
    advice = said(
        useless_threads.find,
        run_on([*plain, *times("safetensors-threads", 1.0, threads=2, **MMAP)]),
    )
    assert "enable_multithread_load" in advice.do[0]
    faster = times("safetensors-threads", 3.0, threads=2, **MMAP)
    assert found(useless_threads.find, run_on([*plain, *faster])) is None


def test_files_into_the_page_cache_before() -> None:
    samples = [
        *times("safetensors-mmap", 1.0, **MMAP),
        *times("safetensors-mmap", 4.0, cache="warm", **MMAP),
    ]
    advice = said(warm_up.find, run_on(samples, memory={"usable_bytes": 8 * GIB}))
    assert "8.00 GiB usable" in advice.cost
    assert advice.saving is not None
    assert advice.saving.seconds == pytest.approx(0.75 / 1.02)
    assert found(warm_up.find, run_on(samples, memory={"usable_bytes": 64 * MIB})) is None
    assert found(warm_up.find, run_on(samples[:3])) is None


def test_the_faster_of_two_storages() -> None:
    samples = [*times("pt", 2.0, storage=NVME), *times("pt", 0.2, storage=NET)]
    advice = said(storage.find, run_on(samples))
    assert advice.title == "Keep the model on nvme, not on net"
    assert advice.saving is not None
    assert advice.saving.seconds == pytest.approx(4.5 / 1.02)
    assert found(storage.find, run_on(samples[:3])) is None
