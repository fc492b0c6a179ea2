"""One sample: the cache is set, the clocks agree or it is taken again, and it says what it saw."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest

from bench.measuring.children import Server
from bench.run.sampling import ATTEMPTS, clocks_agree, take
from loaders.system.residency import UNKNOWN
from tests.test_ceilings import assert_partition
from tests.tiny_bench import Ground


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground.lay(tmp_path_factory.mktemp("sampling"))


@pytest.fixture(scope="module")
def server(ground: Ground) -> Iterator[Server]:
    server = Server(ground.work / "children.log")
    server.preload("bench.measuring.child:manifest", path=str(ground.ready.manifest_path))
    server.preload("bench.measuring.child:reference", path=str(ground.ready.reference_path))
    yield server
    server.close()


@pytest.mark.parametrize(
    "loader", ["safetensors-mmap", "safetensors-eager", "safetensors-threads", "example"]
)
@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_c78_a_sample_says_what_was_seen(
    server: Server, ground: Ground, loader: str, cache: str
) -> None:
    sample = ground.sample(server, ground.job(loader, cache=cache))
    assert (sample.status, sample.reason, sample.verified) == ("ok", None, True)
    assert sample.bytes == ground.payload
    assert_partition(sample)
    assert sample.runner_seconds is not None
    assert sample.cpu_seconds is not None
    assert sample.minor_faults
    if ground.residency.method is not None:
        assert sample.cache.state in {cache, "mixed"}
        assert sample.cache.resident_before == pytest.approx(float(cache == "warm"), abs=0.01)
    if ground.charged and cache == "cold":
        assert sample.cache.state == "cold"


def test_owned_memory_shows_in_the_peak(server: Server, ground: Ground) -> None:
    sample = ground.sample(server, ground.job("example"))
    if sample.peak_rss_bytes is None or sample.rss_before_bytes is None:
        pytest.skip("this kernel doesn't tell")
    assert sample.peak_rss_bytes >= sample.rss_before_bytes


def test_made_up_values_are_not_called_verified(server: Server, ground: Ground) -> None:
    job = dataclasses.replace(ground.job("dummy", cache="none"), synthetic=True)
    sample = ground.sample(server, job)
    assert (sample.status, sample.verified) == ("ok", None)
    assert sample.verified_reason == "made-up values: names and shapes only"


def test_c74_unknown_residency_is_unverified_and_never_nought(
    server: Server, ground: Ground
) -> None:
    job = dataclasses.replace(ground.job("example", cache="cold"), residency=UNKNOWN, charged=None)
    sample = ground.sample(server, job)
    assert sample.status == "ok"
    assert sample.cache.state == "unverified"
    assert sample.cache.resident_before is None
    assert sample.cache.device_read_bytes is None


def test_the_first_try_alone_is_timed_and_clocks_that_disagree_are_tried_again(
    server: Server, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = [False] * (ATTEMPTS - 1) + [True]
    monkeypatch.setattr("bench.run.sampling.clocks_agree", lambda sample: verdicts.pop(0))
    timed: list[int] = []

    def clock(run: Callable[[], None]) -> None:
        timed.append(1)
        run()

    discarded: list[str | None] = []
    sample = take(server, ground.job("example"), clock, lambda bad: discarded.append(bad.reason))
    assert sample.status == "ok"
    assert len(timed) == 1
    assert len(discarded) == ATTEMPTS - 1
    assert all("the clocks disagree: " in (reason or "") for reason in discarded)


def test_clocks_that_never_agree_are_a_failure(
    server: Server, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.run.sampling.clocks_agree", lambda sample: False)
    discarded: list[str | None] = []
    sample = take(
        server,
        ground.job("example"),
        lambda run: run(),
        lambda bad: discarded.append(bad.reason),
    )
    assert sample.status == "failed"
    assert len(discarded) == ATTEMPTS - 1
    assert "by the child" in (sample.reason or "")


@pytest.mark.parametrize(
    ("child", "runner", "smoke", "agree"),
    [
        (1.0, 1.0, False, True),
        (1.0, 1.009, False, True),
        (1.0, 0.991, False, True),
        (1.0, 1.02, False, False),
        (0.001, 0.0025, False, True),
        (0.001, 0.004, False, False),
        (0.001, 0.09, True, True),
        (0.001, 0.2, True, False),
    ],
)
def test_clocks_agree_within_two_milliseconds_or_a_hundredth(
    ground: Ground, child: float, runner: float, smoke: bool, agree: bool
) -> None:
    blank = ground.job("example").blank
    sample = dataclasses.replace(
        blank,
        smoke=smoke,
        runner_seconds=runner,
        child_seconds=child,
    )
    assert clocks_agree(sample) is agree


def test_an_interrupt_leaves_no_child(server: Server, ground: Ground) -> None:
    """Ctrl-C while a sample is being taken; the next one works."""

    def interrupted(run: Callable[[], None]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take(server, ground.job("example"), interrupted, lambda bad: None)
    assert ground.sample(server, ground.job("example")).status == "ok"


def test_the_manifest_is_inherited_and_not_read_again(server: Server, ground: Ground) -> None:
    """A child that opened files before the clock would warm what it is about to load cold."""
    hidden = ground.ready.manifest_path.rename(ground.work / "hidden")
    try:
        assert ground.sample(server, ground.job("example")).status == "ok"
    finally:
        hidden.rename(ground.ready.manifest_path)
