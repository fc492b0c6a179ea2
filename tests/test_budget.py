"""The budget: what a run is expected to take, and the size that fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.record.cases import Case
from bench.run.budget import FIXED, SMALLEST, SPARED, Rates, fit, run_seconds, sample_seconds

GIB = 1 << 30
RATES = Rates(direct=2e9, cold=1e9, warm=4e9)


def case(cache: str, phase: str = "disk_to_host", storage: str | None = "nvme") -> Case:
    return Case(phase=phase, loader="x", cache=cache, storage=storage)  # type: ignore[arg-type]


CASES = [case("cold"), case("warm"), case("cold", "ceiling"), case("none", "ceiling", None)]


def test_a_cold_sample_takes_longer_than_a_warm_one() -> None:
    cold, warm = (sample_seconds(case(cache), GIB, RATES) for cache in ("cold", "warm"))
    assert cold > warm > FIXED
    assert cold > GIB / RATES.cold


def test_a_sample_is_never_free() -> None:
    for one in CASES:
        assert sample_seconds(one, 0, RATES) >= FIXED
        assert sample_seconds(one, 0, None) >= FIXED


def test_passes_and_cases_add_up() -> None:
    rates = {"nvme": RATES}
    one = sum(run_seconds([each], 1, GIB, rates) for each in CASES)
    assert run_seconds(CASES, 3, GIB, rates) == pytest.approx(3 * one)
    assert run_seconds([], 3, GIB, rates) == 0


def test_each_storage_has_its_own_rates() -> None:
    rates = {"nvme": RATES, "nfs": Rates(direct=2e8, cold=1e8, warm=4e9)}
    fast = run_seconds([case("cold", storage="nvme")], 1, GIB, rates)
    slow = run_seconds([case("cold", storage="nfs")], 1, GIB, rates)
    assert slow > fast + GIB / 2e8
    # one that was never looked at costs what memory costs
    assert run_seconds([case("cold", storage="other")], 1, GIB, rates) < fast


def test_the_size_stays_when_it_fits() -> None:
    assert fit(CASES, 3, GIB, 1e9, {"nvme": RATES}) == GIB
    assert fit([], 3, GIB, 0, {}) == GIB


def test_a_size_below_the_smallest_is_left_alone() -> None:
    assert fit(CASES, 100, 1000, 0.001, {"nvme": RATES}) == 1000


def test_a_budget_that_nothing_fits_gives_the_smallest() -> None:
    assert fit(CASES, 1000, 100 * GIB, 0.001, {"nvme": RATES}) == SMALLEST
    assert fit(CASES, 1000, SMALLEST + 1, 0.001, {"nvme": RATES}) == SMALLEST


@given(st.integers(1, 200 * GIB), st.floats(0.01, 10_000), st.integers(1, 20), st.floats(1e6, 1e11))
def test_the_size_is_halved_and_no_further_than_needed(
    size: int, budget: float, passes: int, rate: float
) -> None:
    rates = {"nvme": Rates(direct=rate, cold=rate, warm=2 * rate)}
    found = fit(CASES, passes, size, budget, rates)
    assert min(size, SMALLEST) <= found <= size
    assert run_seconds(CASES, passes, found, rates) <= budget or found <= SMALLEST
    if found < size:  # the next larger one would not have fitted
        assert run_seconds(CASES, passes, found * 2, rates) > SPARED * budget * 0.99


def test_a_store_is_read_twice_over_its_link() -> None:
    cases = [case("none", storage="web")]
    without = run_seconds(cases, 1, GIB, {})
    assert run_seconds(cases, 3, GIB, {}, {"web": 1e8}) == pytest.approx(
        3 * (without + 2 * GIB / 1e8)
    )
    assert run_seconds(CASES, 1, GIB, {}, {"web": 1e8}) == run_seconds(CASES, 1, GIB, {})
