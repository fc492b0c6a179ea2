"""Cache states: what was seen decides, not what was asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.record.cachestate import cache_state

GB = 10**9


@pytest.mark.parametrize(
    ("requested", "resident", "fetched", "state"),
    [
        ("cold", 0.0, GB, "cold"),
        ("cold", 0.0, 2 * GB, "cold"),  # read ahead, a file larger than its tensors
        ("cold", 0.004, GB, "cold"),
        ("cold", 0.0, None, "cold"),  # a file system that doesn't charge the reader
        ("cold", 0.3, GB, "mixed"),
        ("cold", 1.0, 0, "mixed"),
        ("cold", 0.0, 0, "mixed"),  # read before the clock, or from a cache that residency misses
        ("cold", 0.0, GB // 2, "mixed"),
        ("cold", None, GB, "unverified"),
        ("cold", None, None, "unverified"),
        ("warm", 1.0, 0, "warm"),
        ("warm", 1.0, None, "warm"),
        ("warm", 0.996, 0, "warm"),
        ("warm", 1.0, GB, "warm"),  # a loader that doesn't ask the page cache: its own affair
        ("warm", 0.9, 0, "mixed"),
        ("warm", 0.0, None, "mixed"),
        ("warm", None, 0, "unverified"),
        ("none", None, None, "none"),
        ("none", 0.5, GB, "none"),
    ],
)
def test_c74_the_state_is_what_was_seen(
    requested: str, resident: float | None, fetched: int | None, state: str
) -> None:
    assert cache_state(requested, resident, fetched, GB) == state


@given(
    st.sampled_from(["cold", "warm"]),
    st.none() | st.floats(0, 1),
    st.none() | st.integers(0, 2 * GB),
    st.none() | st.integers(0, GB),
)
def test_cold_and_warm_are_never_said_without_proof(
    requested: str, resident: float | None, fetched: int | None, payload: int | None
) -> None:
    state = cache_state(requested, resident, fetched, payload)
    assert state in {requested, "mixed", "unverified"}
    assert (state == "unverified") == (resident is None)
    if state == "cold":
        assert resident is not None
        assert resident <= 0.005
    if state == "warm":
        assert resident is not None
        assert resident >= 0.995


def test_c76_what_was_pushed_out_while_it_was_read_was_not_warm() -> None:
    assert cache_state("warm", 1.0, GB // 4, GB, 0.7) == "mixed"
    assert cache_state("warm", 1.0, GB // 4, GB, 1.0) == "warm"


def test_not_counted_is_not_nothing_fetched() -> None:
    """Null is never taken for 0: nothing fetched would be a contradiction."""
    assert cache_state("cold", 0.0, None, GB) != cache_state("cold", 0.0, 0, GB)
