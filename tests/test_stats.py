"""Statistics: ranges, paired ratios, bootstrap bounds."""

from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.record.stats import BOOTSTRAP_FROM, bootstrap_interval, paired_ratio, spread

seconds = st.floats(0.001, 1000, allow_nan=False)
passes = st.dictionaries(st.integers(1, 30), seconds, min_size=1, max_size=20)


def test_spread_of_none_one_and_two() -> None:
    assert spread([]) is None
    one = spread([2.5])
    assert one is not None
    assert (one.n, one.median, one.low, one.high) == (1, 2.5, 2.5, 2.5)
    two = spread([3.0, 1.0])
    assert two is not None
    assert (two.n, two.median, two.low, two.high) == (2, 2.0, 1.0, 3.0)


@given(st.lists(seconds, min_size=1, max_size=50))
def test_the_median_lies_within_the_range(values: list[float]) -> None:
    found = spread(values)
    assert found is not None
    assert found.low <= found.median <= found.high
    assert found.low == min(values)
    assert found.high == max(values)


def test_only_passes_that_both_have_are_paired() -> None:
    ratio = paired_ratio({1: 2.0, 2: 4.0, 7: 100.0}, {1: 1.0, 2: 1.0, 3: 0.001})
    assert ratio is not None
    assert (ratio.n, ratio.median, ratio.low, ratio.high, ratio.kind) == (2, 3.0, 2.0, 4.0, "range")


def test_pairs_cancel_a_drift_that_medians_do_not() -> None:
    """A disk that slows down by a factor of ten within the run: each pass has the same ratio."""
    a = {number: 1.1 * 10**number for number in range(3)}
    b = {number: 1.0 * 10**number for number in range(3)}
    ratio = paired_ratio(a, b)
    assert ratio is not None
    assert ratio.low == pytest.approx(1.1)
    assert ratio.high == pytest.approx(1.1)
    assert ratio.shown


def test_no_pair_no_ratio() -> None:
    assert paired_ratio({}, {}) is None
    assert paired_ratio({1: 1.0}, {2: 1.0}) is None
    assert paired_ratio({1: 1.0, 2: 1.0}, {1: 0.0, 2: 1.0}) is None


def test_one_pair_shows_no_difference() -> None:
    ratio = paired_ratio({1: 5.0}, {1: 1.0})
    assert ratio is not None
    assert (ratio.n, ratio.median, ratio.shown) == (1, 5.0, False)


@given(passes, passes)
def test_a_difference_is_shown_iff_the_bounds_leave_one_out(
    a: dict[int, float], b: dict[int, float]
) -> None:
    ratio = paired_ratio(a, b)
    if ratio is None:
        assert not a.keys() & b.keys()
        return
    assert ratio.n == len(a.keys() & b.keys())
    assert ratio.low <= ratio.median <= ratio.high
    assert ratio.shown == (ratio.n > 1 and not ratio.low <= 1 <= ratio.high)
    assert ratio.kind == ("range" if ratio.n < BOOTSTRAP_FROM else "95 % interval")


@given(passes)
def test_a_contestant_against_itself_shows_no_difference(a: dict[int, float]) -> None:
    ratio = paired_ratio(a, a)
    assert ratio is not None
    assert (ratio.median, ratio.shown) == (1.0, False)


@given(st.lists(seconds, min_size=8, max_size=15))
def test_bootstrap_bounds_lie_in_the_range_and_around_the_median(values: list[float]) -> None:
    low, high = bootstrap_interval(values)
    assert min(values) <= low <= median(values) <= high <= max(values)
    assert (low, high) == bootstrap_interval(values)  # seeded
    assert bootstrap_interval([4.2] * len(values)) == (4.2, 4.2)


def test_bootstrap_bounds_are_those_of_order_statistics() -> None:
    """For nine values the median's 95 % interval is about from the second to the eighth."""
    low, high = bootstrap_interval([float(number) for number in range(1, 10)])
    assert 2 <= low <= 3
    assert 7 <= high <= 8


def test_one_outlier_in_eight_passes_does_not_move_the_interval_far() -> None:
    a = {number: 1.0 + number / 1000 for number in range(8)} | {8: 100.0}
    ratio = paired_ratio(a, dict.fromkeys(a, 1.0))
    assert ratio is not None
    assert ratio.kind == "95 % interval"
    assert ratio.high < 2
