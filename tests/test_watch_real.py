"""Logs that vLLM 0.32 (its CPU build) printed, fed as they arrived."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.watch.reader import Reader
from bench.watch.stages import Stages

LOGS = Path(__file__).parent / "logs_real"


def fed(name: str, piece: int) -> tuple[Reader, Stages]:
    """The log in pieces of so many lines, one second apart."""
    reader, stages = Reader(), Stages()
    lines = (LOGS / f"{name}.log").read_bytes().splitlines(keepends=True)
    for at in range(0, len(lines), piece):
        for line in lines[at : at + piece]:
            stages.feed(line, float(at))
        reader.feed(b"".join(lines[at : at + piece]), float(at))
    return reader, stages


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_a_start_that_was_ready(piece: int) -> None:
    reader, stages = fed("vllm032-cpu-tiny-eager-ready", piece)
    found = reader.record()
    assert (found.status, found.model, found.vllm_version) == ("ready", "tiny", "0.32.0")
    assert found.phases.kv_cache_tokens is not None
    assert stages.ready is not None
    if piece == 1:
        names = [stage.name for stage in stages.until(1e6)]
        assert names == ["start", "weights", "kv_pool", "warmup", "server"]


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_a_start_that_found_too_little_memory(piece: int) -> None:
    reader, stages = fed("vllm032-cpu-memory-failed", piece)
    found = reader.record()
    assert found.status == "failed"
    assert "Available memory on node 0" in (found.failure or "")
    assert stages.ready is None
