"""What a stage was made of: the split of its seconds, from what was counted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.watch.makeup import KINDS, make_up
from bench.watch.processes import Counts
from bench.watch.samples import Span

GIB = 1 << 30
IDLE = Counts(device_bytes=0, read_bytes=0, block_wait_seconds=0.0)


def span(wall: float = 10.0, *, busiest: float | None = None, **counts: float) -> Span:
    """`busiest` is all the CPU time unless given."""
    counted = replace(IDLE, **counts)
    return Span(
        wall_seconds=wall,
        counts=counted,
        busiest="worker[7]",
        busiest_cpu_seconds=counted.cpu_seconds if busiest is None else busiest,
        blocked=None,
        stalled_seconds=None,
        short_of_cores_seconds=None,
        peak_resident_bytes=None,
        device_memory_bytes=None,
        looks=0,
    )


def test_idle_is_waiting_for_another_process() -> None:
    made = make_up(span())
    assert made.main == "other"
    assert made.seconds["other"] == 10.0


def test_python_at_work_is_computing() -> None:
    made = make_up(span(cpu_seconds=9.0, system_seconds=0.5, minor_faults=1000))
    assert made.main == "compute"
    assert made.seconds["other"] == pytest.approx(1.0)


def test_read_calls_that_wait_are_the_disk() -> None:
    made = make_up(
        span(cpu_seconds=1.0, system_seconds=0.9, device_bytes=2 * GIB, read_bytes=2 * GIB)
    )
    assert made.main == "disk"
    assert made.seconds["disk"] == pytest.approx(9.0)
    assert made.device_gbps == pytest.approx(2 * GIB / 10 / 1e9)


def test_c93_bytes_that_no_read_call_accounts_for_came_by_faults() -> None:
    counts = {"device_bytes": 2 * GIB, "read_bytes": 1 << 20, "major_faults": 16384}
    made = make_up(span(cpu_seconds=1.0, system_seconds=0.5, minor_faults=500_000, **counts))
    assert made.main == "faults"
    assert made.seconds["faults"] > 9.0


def test_half_by_reads_and_half_by_faults_is_split() -> None:
    counts = {"device_bytes": 2 * GIB, "read_bytes": GIB, "major_faults": 10_000}
    made = make_up(span(cpu_seconds=0.0, **counts))
    assert made.seconds["disk"] == pytest.approx(made.seconds["faults"])


def test_bytes_without_a_fault_that_waited_are_the_disk() -> None:
    """What reads without read calls (io_uring) has no major faults."""
    made = make_up(span(device_bytes=2 * GIB, read_bytes=0, major_faults=0))
    assert made.main == "disk"


def test_a_warm_file_is_copying() -> None:
    made = make_up(
        span(1.0, cpu_seconds=1.0, system_seconds=0.95, read_bytes=9 * GIB, minor_faults=100)
    )
    assert made.main == "copy"


def test_a_warm_mapping_is_faulting() -> None:
    made = make_up(span(1.0, cpu_seconds=1.0, system_seconds=0.9, minor_faults=1_200_000))
    assert made.main == "faults"


def test_eight_workers_that_wait_are_not_computing() -> None:
    made = make_up(span(cpu_seconds=24.0, busiest=3.0, device_bytes=8 * GIB, read_bytes=8 * GIB))
    assert made.cores == pytest.approx(2.4)
    assert made.main == "disk"


def test_processes_that_took_turns_between_two_looks_are_at_work() -> None:
    seen = span(cpu_seconds=9.0, busiest=4.5)
    assert make_up(replace(seen, looks=1)).seconds["compute"] == pytest.approx(9.0)
    assert make_up(replace(seen, looks=50)).seconds["compute"] == pytest.approx(4.5)


def test_one_process_at_work_is_not_idle_because_others_are() -> None:
    made = make_up(span(cpu_seconds=9.9, busiest=9.5))
    assert made.main == "compute"


def test_what_overlaps_is_shortened_in_proportion() -> None:
    counts = {"cpu_seconds": 10.0, "device_bytes": 8 * GIB, "read_bytes": 8 * GIB}
    made = make_up(replace(span(**counts), stalled_seconds=10.0))
    assert made.seconds["disk"] == pytest.approx(5.0)
    assert sum(made.seconds.values()) == pytest.approx(10.0)


READING = {"device_bytes": GIB, "read_bytes": GIB, "cpu_seconds": 1.0}


@pytest.mark.parametrize(
    ("seen", "seconds", "words"),
    [
        (span(block_wait_seconds=4.0, **READING), 4.0, "delay accounting"),
        (replace(span(**READING), stalled_seconds=6.0), 6.0, "/proc/pressure/io"),
        (replace(span(**READING), blocked=0.5, looks=20), 5.0, "50% of 20 looks"),
        (replace(span(**READING), blocked=1.0, looks=2), 9.0, "left over"),
        (span(**READING), 9.0, "left over"),
        (span(block_wait_seconds=0.0, **READING), 9.0, "left over"),
    ],
    ids=["delay accounting", "pressure", "looks", "too few looks", "rest", "accounting is off"],
)
def test_the_best_witness_of_waiting_is_taken_and_named(
    seen: Span, seconds: float, words: str
) -> None:
    made = make_up(seen)
    assert made.seconds["disk"] == pytest.approx(seconds)
    assert words in made.witness


def test_other_processes_stalls_are_not_ours() -> None:
    """The host's stall count holds everybody's; who fetched nothing waited for nothing."""
    made = make_up(replace(span(device_bytes=4096), stalled_seconds=10.0))
    assert made.seconds["disk"] == 0.0
    assert made.main == "other"


def test_bytes_that_are_not_counted_are_null_and_not_0() -> None:
    unknown = replace(span(), counts=Counts(cpu_seconds=1.0))
    made = make_up(unknown)
    assert made.device_gbps is None
    assert "nothing here tells" in made.witness


def test_a_span_of_no_length_has_no_main_kind() -> None:
    assert make_up(span(0.0)).main is None


@given(
    wall=st.floats(0.001, 1e5),
    cpu=st.floats(0, 1e6),
    system=st.floats(0, 1),
    busiest=st.floats(0, 1),
    minor=st.integers(0, 10**10),
    major=st.integers(0, 10**9),
    device=st.none() | st.integers(0, 10**14),
    read=st.none() | st.integers(0, 10**14),
    waited=st.none() | st.floats(0, 1e6),
    stalled=st.none() | st.floats(0, 1e6),
    blocked=st.none() | st.floats(0, 1),
    looks=st.integers(0, 100),
)
def test_the_parts_add_up_to_the_wall_time(
    wall: float,
    cpu: float,
    system: float,
    busiest: float,
    minor: int,
    major: int,
    device: int | None,
    read: int | None,
    waited: float | None,
    stalled: float | None,
    blocked: float | None,
    looks: int,
) -> None:
    counts = Counts(
        cpu_seconds=cpu,
        system_seconds=cpu * system,
        minor_faults=minor,
        major_faults=major,
        device_bytes=device,
        read_bytes=read,
        block_wait_seconds=waited,
    )
    seen = Span(
        wall_seconds=wall,
        counts=counts,
        busiest="x",
        busiest_cpu_seconds=cpu * busiest,
        blocked=blocked,
        stalled_seconds=stalled,
        short_of_cores_seconds=None,
        peak_resident_bytes=None,
        device_memory_bytes=None,
        looks=looks,
    )
    made = make_up(seen)
    assert all(made.seconds[kind] >= 0 for kind in KINDS)
    assert sum(made.seconds.values()) == pytest.approx(wall)
    assert made.main in KINDS
