from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.sizes import SizeError, format_size, parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1GiB", 2**30),
        ("1 GiB", 2**30),
        (" 16 MiB ", 16 * 2**20),
        ("1.5GB", 1_500_000_000),
        ("500M", 500 * 2**20),
        ("1G", 2**30),
        ("1gib", 2**30),
        ("2kB", 2000),
        ("3KiB", 3072),
        ("1TiB", 2**40),
        ("1PB", 10**15),
        ("4Gi", 2**32),
        ("4096", 4096),
        ("4096 B", 4096),
        (".5KiB", 512),
        ("0.3KiB", 307),
        ("1.1GB", 1_100_000_000),
    ],
)
def test_sizes_as_people_write_them(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", " ", "GiB", "1 gigabyte", "-1GiB", "1e9", "1,5GB", "1_000", "nan", "inf", "1iB", "1..5G",
     "1GiB 2", "0x10", "0", "0GiB", "0.5", "1GiBs", "\u0661GiB", "1i"],
)  # fmt: skip
def test_what_is_no_size_is_named(text: str) -> None:
    with pytest.raises(SizeError) as caught:
        parse_size(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (2**30, "1.00 GiB"),
        (2**30 - 1, "1.00 GiB"),
        (1536 * 2**20, "1.50 GiB"),
        (5 * 2**60, "5120.00 PiB"),
    ],
)
def test_sizes_are_printed_in_binary_units(size: int, expected: str) -> None:
    assert format_size(size) == expected


@given(st.integers(min_value=1, max_value=2**59))
def test_a_printed_size_reads_back_as_nearly_the_same(size: int) -> None:
    assert parse_size(format_size(size)) == pytest.approx(size, rel=0.006)


@given(st.integers(min_value=1, max_value=10**18))
def test_plain_bytes_are_exact(size: int) -> None:
    assert parse_size(str(size)) == size
