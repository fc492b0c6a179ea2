"""Memory limits of cgroups, open files and shared memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from bench.run.limits import LimitError, raise_nofile, shm_room
from loaders.system.memory import available_bytes, limits, tightest_limit
from tests.tiny_host import tree

MIB = 2**20
V2 = "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = "35 1 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
MEMINFO = "MemTotal:  33554432 kB\nMemFree: 1 kB\nMemAvailable:   16777216 kB\n"
UNLIMITED_V1 = ("9223372036854771712", "9223372036854710272", "18446744073709551615")


def v2(root: Path, group: str = "/", **files: str) -> Path:
    own = {f"sys/fs/cgroup{group}/{k.replace('__', '.')}": v for k, v in files.items()}
    return tree(
        root,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/mountinfo": V2,
            "proc/self/cgroup": f"0::{group}\n",
            **own,
        },
    )


def test_c76_v2_limit_of_256_mib(tmp_path: Path) -> None:
    root = v2(
        tmp_path,
        memory__max=f"{256 * MIB}\n",
        memory__current=f"{200 * MIB}\n",
        memory__stat=f"anon {60 * MIB}\ninactive_file {120 * MIB}\nactive_file {20 * MIB}\n",
    )
    assert available_bytes(root) == (256 - 80) * MIB
    assert tightest_limit(root) == 256 * MIB
    (limit,) = limits(root)
    assert (limit.used, limit.reclaimable) == (200 * MIB, 120 * MIB)
    assert limit.source.endswith("/sys/fs/cgroup")


def test_c76_v1_limit_of_256_mib(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/docker/abc"
    root = tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/mountinfo": V1,
            "proc/self/cgroup": "4:memory:/docker/abc\n1:cpu:/\n",
            f"{group}/memory.limit_in_bytes": f"{256 * MIB}",
            f"{group}/memory.usage_in_bytes": f"{100 * MIB}",
            f"{group}/memory.stat": f"inactive_file 1\ntotal_inactive_file {30 * MIB}\n"
            "hierarchical_memory_limit 9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED_V1[0],
        },
    )
    assert available_bytes(root) == (256 - 70) * MIB
    assert tightest_limit(root) == 256 * MIB


@pytest.mark.parametrize("huge", UNLIMITED_V1)
def test_c76_v1s_huge_number_is_no_limit(tmp_path: Path, huge: str) -> None:
    root = tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/mountinfo": V1,
            "proc/self/cgroup": "4:memory:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": huge,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "5",
        },
    )
    assert limits(root) == []
    assert available_bytes(root) == 16777216 * 1024


def test_c76_v1_parents_limit_that_the_container_cannot_see(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory"
    root = tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/mountinfo": V1.replace("0:32 /", "0:32 /docker/abc"),
            "proc/self/cgroup": "4:memory:/docker/abc\n",
            f"{group}/memory.limit_in_bytes": UNLIMITED_V1[0],
            f"{group}/memory.usage_in_bytes": "0",
            f"{group}/memory.stat": f"hierarchical_memory_limit {512 * MIB}\n",
        },
    )
    assert available_bytes(root) == 512 * MIB


def test_c76_the_tightest_of_own_and_parents_counts(tmp_path: Path) -> None:
    root = v2(tmp_path, "/a/b", memory__max="max", memory__current="0")
    tree(
        root,
        {
            "sys/fs/cgroup/a/memory.max": f"{256 * MIB}",
            "sys/fs/cgroup/a/memory.current": f"{255 * MIB}",
        },
    )
    assert available_bytes(root) == 1 * MIB
    assert [limit.limit for limit in limits(root)] == [256 * MIB]


def test_c76_memory_high_slows_everything_above_it(tmp_path: Path) -> None:
    root = v2(tmp_path, memory__max=f"{512 * MIB}", memory__high=f"{256 * MIB}")
    assert tightest_limit(root) == 256 * MIB


def test_c76_a_full_group_leaves_nothing_and_never_less(tmp_path: Path) -> None:
    root = v2(tmp_path, memory__max="1000", memory__current="5000")
    assert available_bytes(root) == 0


def test_c76_a_limit_of_zero_is_a_limit(tmp_path: Path) -> None:
    assert available_bytes(v2(tmp_path, memory__max="0", memory__current="0")) == 0


def test_c76_the_host_can_be_tighter_than_the_group(tmp_path: Path) -> None:
    root = v2(tmp_path, memory__max=f"{2**50}", memory__current="0")
    assert available_bytes(root) == 16777216 * 1024


def test_c76_hybrid_host_with_memory_in_version_1(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/mountinfo": V1 + V2.replace("/cgroup rw", "/cgroup/unified rw"),
            "proc/self/cgroup": "4:memory:/job\n0::/job\n",
            "sys/fs/cgroup/unified/cgroup.controllers": "",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{256 * MIB}",
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "0",
        },
    )
    assert available_bytes(root) == 256 * MIB


def test_old_kernel_without_mem_available(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/meminfo": "MemFree: 10 kB\nBuffers: 5 kB\nCached: 1 kB\n"})
    assert available_bytes(root) == 16 * 1024


def test_nothing_known_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="proc/meminfo"):
        available_bytes(tmp_path)


def test_this_host() -> None:
    assert 0 < available_bytes() < 2**50


def _in_child(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )


def test_c82_the_soft_limit_is_raised_as_far_as_needed() -> None:
    """32 files allowed, 64 shards opened."""
    done = _in_child(
        "import os, resource\n"
        "from bench.run.limits import raise_nofile\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (32, 256))\n"
        "raise_nofile(100)\n"
        "files = [open(os.devnull) for _ in range(64)]\n"
        "print(len(files), *resource.getrlimit(resource.RLIMIT_NOFILE))\n"
        "[f.close() for f in files]\n"
        "raise_nofile(50)\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))\n"
    )
    assert done.stdout.split() == ["64", "100", "256", "100", "256"], done.stderr


def test_c82_more_than_the_hard_limit_is_an_error_with_both_numbers() -> None:
    done = _in_child(
        "import resource\n"
        "from bench.run.limits import LimitError, raise_nofile\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))\n"
        "try: raise_nofile(64)\n"
        "except LimitError as error: print(error)\n"
    )
    assert "64 needed" in done.stdout, done.stderr
    assert "is 32" in done.stdout
    assert "ulimit" in done.stdout


def test_c82_enough_already() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_nofile(3)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_c73_shared_memory_too_small_says_need_and_have() -> None:
    with pytest.raises(LimitError, match="shm-size") as caught:
        shm_room("/dev/shm", 2**30, free=lambda _: 63 * MIB)
    assert "1.00 GiB needed" in str(caught.value)
    assert "63.00 MiB free" in str(caught.value)
    assert "/dev/shm" in str(caught.value)


def test_c73_room_to_the_byte() -> None:
    shm_room("/dev/shm", 64 * MIB, free=lambda _: 64 * MIB)
    with pytest.raises(LimitError):
        shm_room("/dev/shm", 64 * MIB + 1, free=lambda _: 64 * MIB)


def test_c73_a_tmpfs_without_a_bound_has_room() -> None:
    shm_room("/dev/shm", 2**40, free=lambda _: None)


def test_c73_a_full_one_is_not_a_boundless_one() -> None:
    with pytest.raises(LimitError):
        shm_room("/dev/shm", 1, free=lambda _: 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_c73_a_real_tmpfs_of_one_mib(tmp_path: Path) -> None:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "coldload-test", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no mount here: {done.stderr.strip()}")
    try:
        shm_room(tmp_path, MIB)
        (tmp_path / "x").write_bytes(bytes(512 * 1024))
        with pytest.raises(LimitError, match=r"512\.00 KiB free"):
            shm_room(tmp_path, MIB)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_c73_a_missing_folder_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        shm_room(tmp_path / "nothing", 1)
