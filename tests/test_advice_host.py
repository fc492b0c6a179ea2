"""Advice on the host's settings: each kind with evidence, and silent without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.advice import (
    huge_pages,
    locked_memory,
    numa,
    page_cache,
    read_ahead,
    shared_memory,
)
from tests.tiny_advice import GIB, MIB, MMAP, found, run_on, said, times
from tests.tiny_report import ceiling, load


def test_more_read_ahead() -> None:
    samples = [*times("safetensors-mmap", 0.5, **MMAP), *times("direct-ring", 2.0, ceiling)]
    advice = said(read_ahead.find, run_on(samples, blocks={"read_ahead_kb": 128}))
    assert advice.do == ("echo 16384 | sudo tee /sys/block/nvme0n1/queue/read_ahead_kb",)
    assert "reads 128 KiB ahead" in advice.seen
    assert advice.saving is not None
    assert advice.saving.at_most
    assert found(read_ahead.find, run_on(samples, blocks={"read_ahead_kb": 8192})) is None
    assert found(read_ahead.find, run_on(samples)) is None
    at_its_limit = [*times("safetensors-mmap", 1.9, **MMAP), *times("direct-ring", 2.0, ceiling)]
    assert found(read_ahead.find, run_on(at_its_limit, blocks={"read_ahead_kb": 128})) is None


@pytest.mark.parametrize(("state", "lines"), [("never", 2), ("madvise", 1), ("always", 1)])
def test_huge_pages(state: str, lines: int) -> None:
    samples = [
        *times("pt", 1.0),
        *times("owned-read", 1.0, ceiling, options={"pages": "4k"}),
        *times("owned-read", 2.0, ceiling, options={"pages": "huge"}),
    ]
    memory = {"transparent_huge_pages": {"enabled": state}}
    advice = said(huge_pages.find, run_on(samples, memory=memory))
    assert len(advice.do) == lines
    assert state in advice.seen
    equal = [replace(s, options={"pages": "huge"}) for s in samples[3:6]]
    assert found(huge_pages.find, run_on([*samples[:6], *equal])) is None
    assert found(huge_pages.find, run_on(samples[:6])) is None


def test_a_checkpoint_that_memory_does_not_hold() -> None:
    """C76."""
    half = load("pt", 1.0, cache="warm", state="mixed")
    half = replace(half, cache=replace(half.cache, resident_before=0.4))
    limits = [{"path": "/a", "bytes": 2 * GIB}]
    advice = said(page_cache.find, run_on([half], cgroup_memory_limits=limits))
    assert "40 % of the files were in memory" in advice.seen
    assert "2.00 GiB" in advice.seen
    assert advice.saving is None
    assert found(page_cache.find, run_on([load("pt", 1.0, cache="warm")])) is None


def test_little_shared_memory() -> None:
    """C73."""
    run = run_on(times("pt", 1.0), shared_memory={"total_bytes": 64 * MIB})
    assert "64.00 MiB" in said(shared_memory.find, run).seen
    wide = run_on(times("pt", 1.0), shared_memory={"total_bytes": 16 * GIB})
    assert found(shared_memory.find, wide) is None
    assert found(shared_memory.find, run_on(times("pt", 1.0))) is None


def test_the_disks_memory_node() -> None:
    nodes = {"numa_nodes": [{"node": 0}, {"node": 1}]}
    advice = said(numa.find, run_on(times("pt", 1.0), blocks={"numa_node": 1}, cpu=nodes))
    assert "numactl --cpunodebind=1 --membind=1 vllm serve" in advice.do[1]
    for blocks, cpu in (
        ({"numa_node": 0}, {"numa_nodes": [{"node": 0}]}),
        ({"numa_node": -1}, nodes),
        ({}, nodes),
    ):
        assert found(numa.find, run_on(times("pt", 1.0), blocks=blocks, cpu=cpu)) is None


def test_locked_memory() -> None:
    """C69: where the limit is smaller than what is copied, and pinned copies are faster."""
    to_device: dict[str, Any] = {
        "phase": "host_to_device",
        "device": "cuda:0",
        "storage": None,
        "cache": "none",
    }
    samples = [*times("pageable", 2.0, **to_device), *times("pinned-ring", 8.0, **to_device)]
    limits = {"memlock": {"soft": 8 * MIB}}
    advice = said(locked_memory.find, run_on(samples, process_limits=limits))
    assert advice.do[0] == "ulimit -l unlimited"
    assert "8.00 MiB" in advice.seen
    no_limit = {"memlock": {"soft": "unlimited"}}
    assert found(locked_memory.find, run_on(samples, process_limits=no_limit)) is None
    assert found(locked_memory.find, run_on(samples[:3], process_limits=limits)) is None
