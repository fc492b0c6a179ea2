"""Addresses, faults of stores, and the sentence about a store's rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.words.remote_limits import Fetched, explain, fetched
from loaders.store.address import cut, file_name, joined, scheme_of
from loaders.store.backend import fault
from loaders.store.errors import StoreError, TransientError


def test_joining_and_cutting() -> None:
    assert joined("https://h/m/", "a b.safetensors") == "https://h/m/a%20b.safetensors"
    assert joined("https://h/m?sig=1", "a") == "https://h/m/a?sig=1"
    assert joined("s3://b", "a#b") == "s3://b/a#b"
    assert joined("memory://", "a") == "memory://a"
    assert cut("https://h/m/a%20b?sig=1") == ("https://h/m?sig=1", "a b")
    assert cut("s3://b/m/x") == ("s3://b/m", "x")
    assert cut("s3://b") == ("s3://b", "")
    assert file_name("file:///a/b/") == "b"
    assert file_name("https://h/a%2Bb?x") == "a+b"


@given(st.text(min_size=1, max_size=20).filter(lambda name: "/" not in name))
def test_any_name_comes_back(name: str) -> None:
    name = name.encode("utf-8", "ignore").decode() or "x"
    for folder in ("https://h/m", "s3://b/m", "memory://m"):
        assert cut(joined(folder, name)) == (folder, name)


def test_schemes() -> None:
    assert scheme_of("S3://x") == "s3"
    for wrong in ("simplecache::s3://x", "x", "://x"):
        with pytest.raises(ValueError, match="address"):
            scheme_of(wrong)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError("x"), "absent"),
        (PermissionError("x"), "refused"),
        (OSError(22, "invalid"), "failed"),
        (ValueError("x"), "failed"),
        (ImportError("Install x"), "backend"),
        (TimeoutError(), None),
        (ConnectionResetError("x"), None),
        (OSError(121, "remote i/o"), None),
    ],
)
def test_what_passes_and_what_does_not(error: Exception, kind: str | None) -> None:
    found = fault(error, "s3://b/x")
    if kind is None:
        assert isinstance(found, TransientError)
    else:
        assert isinstance(found, StoreError)
        assert found.kind == kind
        assert "s3://b/x" in str(found)


def one(**changed: object) -> Fetched:
    plain = {
        "nbytes": 1_000_000_000,
        "seconds": 10.0,
        "requests": 60,
        "retries": 0,
        "chunk_bytes": 16 << 20,
        "concurrency": 4,
        "files": 4,
    }
    return Fetched(**{**plain, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"retries": 9}, "9 retries"),
        ({"link": 1.1e8}, "the link is the limit"),
        ({"requests": 2}, "only 2 of 4 streams"),
        ({"latency": 0.4}, "waits 400 ms for its first byte, 60% of its time"),
        ({"latency": 0.01}, "0.025 GB/s, and its time is not spent waiting"),
        ({"latency": 0.01, "link": 1.25e9}, "50 streams would fill the link"),
        ({}, "its waiting included"),
        ({"requests": 0}, "no request was made"),
        ({"seconds": 0.0, "latency": 0.1}, "0 GB/s"),
    ],
)
def test_c88_a_rate_below_the_link_is_explained(changed: dict[str, object], said: str) -> None:
    """C88: the rate stands with requests, their size, how many at a time and files, and why."""
    text = explain(one(**changed))
    assert said in text
    if changed.get("requests") != 0:
        for figure in ("requests of up to 16 MiB", "4 at a time", "from 4 files"):
            assert figure in text


def test_c88_from_a_loaders_counts() -> None:
    counts = {"requests": 10, "bytes": 10 << 20, "retries": 1, "busy_us": 9, "wait_us": 2_000_000}
    found = fetched(counts, seconds=1.0, chunk_bytes=1 << 20, concurrency=2, files=1)
    assert found.latency == pytest.approx(0.2)
    assert fetched({}, seconds=1.0, chunk_bytes=1, concurrency=1, files=0).latency is None


@given(
    st.integers(0, 10**12), st.just(0.0) | st.floats(1e-9, 1e5),
    st.integers(0, 10**6), st.integers(0, 10**6),
    st.integers(1, 1 << 40), st.integers(1, 4096), st.integers(0, 10**4),
    st.none() | st.floats(0, 1e4), st.none() | st.floats(1, 1e12),
)  # fmt: skip
def test_an_explanation_for_anything(
    nbytes: int, seconds: float, requests: int, retries: int, chunk: int, at_once: int,
    files: int, latency: float | None, link: float | None,
) -> None:  # fmt: skip
    found = Fetched(
        nbytes=nbytes, seconds=seconds, requests=requests, retries=retries, chunk_bytes=chunk,
        concurrency=at_once, files=files, latency=latency, link=link,
    )  # fmt: skip
    text = explain(found)
    assert text
    assert "nan" not in text
    assert "inf" not in text
