"""Read once and scatter: who reads what, and what arrives. Ranks are threads here."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from bench.phases.slicing import fresh_targets
from bench.ranks.job import Job, digest, distinct_bytes, expected_digests
from loaders.checkpoint.manifest import Checkpoint
from loaders.io.errors import TruncatedError
from loaders.slicing.scatter import Shares, read_and_scatter
from tests.tiny_ranks import Crowd, by_hand, tiny_model


def job_of(checkpoint: Checkpoint, world: int, *, ep: bool = False) -> Job:
    return Job(
        checkpoint=checkpoint, world=world, ep=ep, kind="cpu", threads=2, touch_bytes=0, timeout=9.0
    )


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return tiny_model(tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return tiny_model(tmp_path_factory.mktemp("experts"), layers=1, experts=10, moe=48, vocab=333)


def scattered(job: Job, shares: Shares) -> list[dict[str, str]]:
    """Digests of what each rank holds afterwards; its memory was full of ones before."""
    plans = job.parameters(range(job.world))
    targets = [fresh_targets(plan) for plan in plans]
    for target in (one for mine in targets for one in mine):
        target.view(torch.uint8).fill_(255)
    crowd = Crowd(job.world)

    def act(rank: int) -> None:
        exchange = crowd.exchange_of(rank)
        read_and_scatter(
            shares, rank, plans[rank], targets[rank], exchange=exchange,
            stamp=lambda name: nullcontext(), threads=2,
        )  # fmt: skip

    crowd.run(act)
    return [
        {one.name: digest(target) for one, target in zip(plan, mine, strict=True)}
        for plan, mine in zip(plans, targets, strict=True)
    ]


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    world=some.sampled_from([1, 2, 4, 8]),
    block=some.sampled_from([9_001, 16_384, 50_001, 1 << 20]),
    kind=some.sampled_from(["dense", "experts", "ep"]),
)
def test_every_rank_gets_its_parameters(
    world: int, block: int, kind: str, dense: Checkpoint, experts: Checkpoint
) -> None:
    checkpoint = dense if kind == "dense" else experts
    job = job_of(checkpoint, world, ep=kind == "ep" and world > 1)
    plans = job.parameters(range(world))
    shares = Shares(checkpoint, plans, block_bytes=block)
    assert scattered(job, shares) == expected_digests(checkpoint, plans)


@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
def test_each_byte_is_read_by_one_rank(world: int, dense: Checkpoint) -> None:
    plans = job_of(dense, 2).parameters([0, 1])
    plans = [plans[rank % 2] for rank in range(world)]
    shares = Shares(dense, plans, block_bytes=10_000)
    read = sorted(
        (one.file, one.start, one.end)
        for rank in range(world)
        for turn in range(shares.rounds)
        for one in shares.block(rank, turn)
    )
    merged = [read[0]]
    for file, start, end in read[1:]:
        before = merged[-1]
        if before[0] == file:
            assert before[2] == start, "a gap, or a byte twice"
            merged[-1] = (file, before[1], end)
        else:
            merged.append((file, start, end))
    total = sum(end - start for _, start, end in read)
    asked = [shares.asked_bytes(rank) for rank in range(world)]
    assert sum(asked) == total
    assert max(asked) - min(asked) <= 1
    if world > 1:  # both plans: everything is kept by one rank or the other
        assert total == dense.tensor_bytes == distinct_bytes(plans)


def test_what_several_ranks_keep_counts_once(dense: Checkpoint) -> None:
    plans = job_of(dense, 8).parameters(range(8))
    kept = sum(one.kept_bytes for plan in plans for one in plan)
    assert distinct_bytes(plans) == dense.tensor_bytes < kept


@pytest.mark.parametrize("world", [2, 4, 8])
def test_digests_are_those_of_narrow_and_cat(world: int, dense: Checkpoint) -> None:
    plans = job_of(dense, world).parameters(range(world))
    for rank, found in enumerate(expected_digests(dense, plans)):
        for name, tensor in by_hand(dense, world, rank).items():
            assert found[name] == digest(tensor.contiguous()), (rank, name)


def test_a_file_that_ends_too_soon_is_named(tmp_path: Path) -> None:
    checkpoint = tiny_model(tmp_path)
    job = job_of(checkpoint, 2)
    short = Path(checkpoint.files[1].path)
    with short.open("r+b") as file:
        file.truncate(short.stat().st_size - 5000)
    with pytest.raises(TruncatedError, match=short.name):
        scattered(job, Shares(checkpoint, job.parameters([0, 1]), block_bytes=50_000))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    checkpoint = tiny_model(tmp_path)
    job = job_of(checkpoint, 2)
    Path(checkpoint.files[2].path).unlink()
    with pytest.raises(FileNotFoundError, match="00003-of-00003"):
        scattered(job, Shares(checkpoint, job.parameters([0, 1]), block_bytes=50_000))


def test_another_job_has_another_fingerprint(dense: Checkpoint, experts: Checkpoint) -> None:
    prints = {
        job_of(dense, 2).fingerprint(),
        job_of(dense, 4).fingerprint(),
        job_of(experts, 2).fingerprint(),
        job_of(experts, 2, ep=True).fingerprint(),
    }
    assert len(prints) == 4
    assert job_of(dense, 2).fingerprint() in prints
