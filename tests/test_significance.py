"""Exact rank tests, against counting by hand and against their own symmetries."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.record.significance import could_show, paired_p, passes_needed, unpaired_p
from bench.record.stats import BOOTSTRAP_FROM, paired_saving, unpaired_ratio

times = st.lists(st.integers(1, 50).map(float), min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("n", "least"), [(1, 1.0), (2, 1 / 3), (3, 0.1), (4, 1 / 35), (5, 1 / 126)]
)
def test_the_clearest_difference_of_unpaired_passes(n: int, least: float) -> None:
    """2 / (2n over n): Mann and Whitney's own table begins at 4 and 4 for 5 %."""
    low, high = [float(i) for i in range(n)], [10.0 + i for i in range(n)]
    assert unpaired_p(low, high) == pytest.approx(least)
    assert could_show(n, n) is (least <= 0.05)


@pytest.mark.parametrize("n", range(1, 9))
def test_the_clearest_difference_of_pairs(n: int) -> None:
    assert paired_p([1.0 + i for i in range(n)]) == pytest.approx(2 / 2**n)
    assert could_show(n) is (n >= 6)


def test_how_many_passes_it_takes() -> None:
    assert passes_needed(paired=False) == 4
    assert passes_needed(paired=True) == 6
    assert could_show(3, 6)  # 2 / 84
    assert not could_show(1, 30)


@given(times, times)
def test_p_is_the_share_of_arrangements_at_least_as_far_apart(
    a: list[float], b: list[float]
) -> None:
    together = [*a, *b]
    order = sorted(together)

    def rank(value: float) -> float:
        return order.index(value) + (order.count(value) + 1) / 2

    middle = len(a) * (len(together) + 1) / 2

    def apart(first: tuple[float, ...]) -> float:
        return abs(sum(rank(value) for value in first) - middle)

    arranged = [apart(one[: len(a)]) for one in permutations(together)] if len(together) < 7 else []
    if arranged:
        expected = sum(one >= apart(tuple(a)) - 1e-9 for one in arranged) / len(arranged)
        assert unpaired_p(a, b) == pytest.approx(expected)
    assert unpaired_p(a, b) == pytest.approx(unpaired_p(b, a))
    assert 0 < unpaired_p(a, b) <= 1


@given(st.lists(st.integers(-9, 9).map(float), max_size=9))
def test_pairs_turned_round_say_the_same(differences: list[float]) -> None:
    assert paired_p(differences) == pytest.approx(paired_p([-value for value in differences]))
    assert 0 < paired_p(differences) <= 1


def test_no_values_and_no_differences_show_nothing() -> None:
    assert unpaired_p([], [1.0]) == paired_p([]) == paired_p([0.0, 0.0]) == 1.0
    assert unpaired_p([2.0] * 5, [2.0] * 5) == 1.0


def test_many_passes_are_near_the_exact_answer() -> None:
    a, b = [float(i) for i in range(9)], [i + 3.5 for i in range(9)]
    exact = unpaired_p(a[:8], b[:8])  # 12,870 arrangements are counted
    assert unpaired_p(a, b) == pytest.approx(exact, abs=0.03)
    assert unpaired_p([1.0] * 20, [1.0] * 20) == 1.0
    shifted = [1.0 + i % 5 for i in range(20)]
    assert paired_p(shifted) < 0.001
    assert paired_p([(-1) ** i * (1.0 + i) for i in range(20)]) > 0.3


def test_unpaired_ratio_has_a_range_and_then_an_interval() -> None:
    few = unpaired_ratio([2.0, 3.0], [1.0, 2.0])
    assert few is not None
    assert (few.low, few.median, few.high, few.kind) == (1.0, 2.5 / 1.5, 3.0, "range")
    a = [1.0 + i / 100 for i in range(BOOTSTRAP_FROM)]
    many = unpaired_ratio([2 * value for value in a], a)
    assert many is not None
    assert many.kind == "95 % interval"
    assert 1.8 < many.low < many.median == 2.0 < many.high < 2.2
    assert many == unpaired_ratio([2 * value for value in a], a)
    assert unpaired_ratio([], [1.0]) is unpaired_ratio([1.0], [0.0]) is None


def test_a_paired_saving_is_of_the_passes_that_both_have() -> None:
    saved = paired_saving({1: 3.0, 2: 5.0, 3: 9.0}, {1: 2.0, 2: 2.0, 4: 0.0})
    assert saved is not None
    assert (saved.n, saved.of, saved.median, saved.low, saved.high) == (2, 4.0, 2.0, 1.0, 3.0)
    assert paired_saving({1: 1.0}, {2: 1.0}) is None
