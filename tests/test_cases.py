"""Cases and their names: stable, the same on every host, without a path."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.record.cases import Case

GOLDEN = Path(__file__).parent / "golden" / "case_ids.txt"

CASES = [
    Case(phase="disk_to_host", loader="safetensors-mmap", cache="cold", storage="ext4"),
    Case(phase="disk_to_host", loader="safetensors-mmap", cache="cold", storage="ext4", twin=True),
    Case(
        phase="disk_to_host",
        loader="pt",
        options={"mmap": True},
        cache="warm",
        storage="nvme",
    ),
    Case(
        phase="disk_to_host",
        loader="parallel",
        options={"huge": False, "block_mib": 16},
        threads=8,
        cache="warm",
        storage="nvme",
    ),
    Case(phase="disk_to_host", loader="dummy", storage="nvme"),
    Case(
        phase="disk_to_host",
        loader="outside",
        options={"where": "/mnt/secret/x", "zeal": True},
        cache="cold",
        storage="nvme",
        twin=True,
    ),
    Case(phase="ceiling", loader="direct-ring", cache="cold", storage="nvme"),
    Case(phase="ceiling", loader="owned-read", options={"pages": "4k"}, cache="warm", storage="n"),
    Case(phase="ceiling", loader="memory-copy", options={"copiers": 2}),
    Case(phase="slice", loader="read-all", device="npu:0", layout="tp8", storage="nvme"),
]


def case_id(case: Case, model: str = "meta-llama/Llama-3.1-8B") -> str:
    return case.case_id(model=model, size="1GiB", dtype="bfloat16")


def test_ids_are_those_of_earlier_versions() -> None:
    """Records of years are compared by them: change the golden file only with the schema."""
    assert [case_id(case) for case in CASES] == GOLDEN.read_text().splitlines()


def test_ids_have_no_path_and_as_many_parts_as_there_are_axes() -> None:
    for case in CASES:
        assert len(case_id(case).split("/")) == 11
        assert "/mnt" not in case_id(case)
        assert " " not in case_id(case)


def test_ids_are_different() -> None:
    assert len({case_id(case) for case in CASES}) == len(CASES)
    assert len({case.test_id for case in CASES}) == len(CASES)


def test_the_order_of_options_does_not_matter() -> None:
    one = Case(phase="p", loader="l", options={"b": 1, "a": 2})
    two = Case(phase="p", loader="l", options={"a": 2, "b": 1})
    assert one == two
    assert hash(one) == hash(two)
    assert case_id(one) == case_id(two)
    assert one.test_id == two.test_id == "l-a=2+b=1"


@pytest.mark.parametrize(
    ("case", "title", "test_id"),
    [
        (CASES[0], "safetensors-mmap", "safetensors-mmap-cold-ext4"),
        (CASES[2], "pt mmap=true", "pt-mmap=true-warm-nvme"),
        (CASES[8], "memory-copy copiers=2", "memory-copy-copiers=2"),
    ],
)
def test_titles_and_test_ids(case: Case, title: str, test_id: str) -> None:
    assert case.title.replace("(", "").replace(")", "") == title
    assert case.test_id == test_id


def test_the_twin_is_marked_once_whatever_the_options_are_called() -> None:
    for case in CASES:
        assert "twin" not in case.title
        assert ("A/A" in case.title) == case.twin
        assert ("twin=true" in case_id(case)) == case.twin


def test_c85_only_small_ids_are_parameters() -> None:
    case = Case(phase="p", loader="l", options={"text": "x" * 10})
    assert len(case.test_id) < 30
