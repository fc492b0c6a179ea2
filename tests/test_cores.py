"""Cores from affinity and CPU quota, on fake trees of cgroup files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.measuring.cores import effective_cores, parse_cfs, parse_cpu_max, quota_cores
from tests.tiny_host import tree

V2 = "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "31 1 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"


@pytest.mark.parametrize(
    ("content", "cores"),
    [
        ("150000 100000", 1),
        ("200000 100000\n", 2),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("1000 100000", 1),
        ("max 100000", 8),
        ("max", 8),
        ("300000", 3),
        ("1600000 100000", 8),
    ],
)
def test_c80_cpu_max_is_rounded_down_and_never_above_the_affinity(
    tmp_path: Path, content: str, cores: int
) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/mountinfo": V2,
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": content,
        },
    )
    assert effective_cores(root, affinity=8) == cores


def test_c80_a_parents_quota_binds_too(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/mountinfo": V2,
            "proc/self/cgroup": "0::/pods/pod1/main\n",
            "sys/fs/cgroup/pods/pod1/main/cpu.max": "max 100000",
            "sys/fs/cgroup/pods/pod1/cpu.max": "300000 100000",
            "sys/fs/cgroup/pods/cpu.max": "900000 100000",
        },
    )
    assert quota_cores(root) == 3.0


@pytest.mark.parametrize(("quota", "expected"), [("350000", 3), ("-1", 8)])
def test_c80_version_1_with_a_joined_controller(tmp_path: Path, quota: str, expected: int) -> None:
    group = "sys/fs/cgroup/cpu,cpuacct/docker/abc"
    root = tree(
        tmp_path,
        {
            "proc/self/mountinfo": V1,
            "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n",
            f"{group}/cpu.cfs_quota_us": quota,
            f"{group}/cpu.cfs_period_us": "100000",
        },
    )
    assert effective_cores(root, affinity=8) == expected


def test_c80_hybrid_host_takes_the_hierarchy_that_has_the_controller(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/mountinfo": V1 + V2.replace("/cgroup rw", "/cgroup/unified rw"),
            "proc/self/cgroup": "1:cpu,cpuacct:/\n0::/\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "50000",
            "sys/fs/cgroup/unified/cgroup.controllers": "",
        },
    )
    assert quota_cores(root) == 4.0


def test_c80_container_whose_own_path_is_the_hosts(tmp_path: Path) -> None:
    """Without a cgroup namespace the mount shows only the container's own group."""
    inside = "30 1 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n"
    files = {
        "proc/self/mountinfo": inside,
        "sys/fs/cgroup/cpu.max": "200000 100000",
        "sys/fs/cgroup/job/cpu.max": "100000 100000",
    }
    seen = {}
    for name, group in {"same": "/docker/abc", "below": "/docker/abc/job", "other": "/x"}.items():
        root = tree(tmp_path / name, {**files, "proc/self/cgroup": f"0::{group}\n"})
        seen[name] = quota_cores(root)
    assert seen == {"same": 2.0, "below": 1.0, "other": 2.0}


@pytest.mark.parametrize("group", ["/kubepods/gone", "/../../elsewhere"])
def test_c80_a_path_that_is_not_visible_falls_back_to_the_mount(tmp_path: Path, group: str) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/mountinfo": V2,
            "proc/self/cgroup": f"0::{group}\n",
            "sys/fs/cgroup/cpu.max": "200000 100000",
        },
    )
    assert quota_cores(root) == 2.0


def test_c80_without_mountinfo_the_usual_place_is_tried(tmp_path: Path) -> None:
    assert quota_cores(tree(tmp_path, {"sys/fs/cgroup/cpu.max": "150000 100000"})) == 1.5


def test_c80_no_cgroup_at_all(tmp_path: Path) -> None:
    assert quota_cores(tmp_path) is None
    assert effective_cores(tmp_path, affinity=3) == 3


def test_c80_this_host_by_affinity() -> None:
    assert 1 <= effective_cores() <= len(os.sched_getaffinity(0))


def test_c80_narrowed_affinity_counts() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert effective_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize("content", ["lots 100000", "1e5 100000", "100000 soon"])
def test_a_file_that_is_no_quota_is_an_error_with_its_content(content: str) -> None:
    with pytest.raises(ValueError, match="not a CPU quota"):
        parse_cpu_max(content)


def test_missing_values_mean_no_quota() -> None:
    assert parse_cpu_max(None) is None
    assert parse_cpu_max("") is None
    assert parse_cfs(None, None) is None
    assert parse_cfs("100000", "0") is None


@given(quota=st.integers(1, 10**9), period=st.integers(1000, 10**6), mask=st.integers(1, 512))
def test_c80_threads_never_exceed_quota_or_mask(quota: int, period: int, mask: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = tree(Path(folder), {"sys/fs/cgroup/cpu.max": f"{quota} {period}"})
        cores = effective_cores(root, affinity=mask)
    assert 1 <= cores <= mask
    assert cores == 1 or cores * period <= quota
    assert cores == mask or (cores + 1) * period > quota
