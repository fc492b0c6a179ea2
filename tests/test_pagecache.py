"""Residency, eviction and warming, on real files of this file system."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.ground.filesystems import describe
from bench.measuring.pagecache import Eviction, drop_caches, evict, warm
from loaders.system.mounts import mount_of
from loaders.system.pagecalls import PAGE, cachestat, mincore
from loaders.system.residency import METHODS, UNKNOWN, Measure, Residency, choose_method

SIZE = 3 * 2**20 + 123  # ends within a page
NOBODY = 65534
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become someone else")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder on a real disk that others may enter (pytest's own are closed to them)."""
    for base in (tempfile.gettempdir(), "/var/tmp", str(Path(__file__).parent)):
        mount = mount_of(Path(base))
        if mount is not None and describe(mount.fs_type).family in ("local", "overlay"):
            break
    else:
        pytest.skip("no folder on a local file system")
    with tempfile.TemporaryDirectory(dir=base, prefix="coldload-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def file(folder: Path) -> Path:
    return _write(folder / "weights.bin", SIZE)


def _write(path: Path, size: int) -> Path:
    path.write_bytes(os.urandom(size))
    return path


@pytest.fixture(params=sorted(METHODS))
def residency(request: pytest.FixtureRequest, file: Path) -> Residency:
    """Each of the two methods by itself: kernels before 6.5 have only mincore."""
    chosen = choose_method(file, methods={request.param: METHODS[request.param]})
    if request.param == "cachestat" and chosen.method is None:
        mount = mount_of(file)
        blind = mount is not None and mount.fs_type == "overlay"
        refused = any(word in (chosen.reason or "") for word in ("implemented", "permitted"))
        if blind or refused:  # no such call, a seccomp filter, or a container's own root
            pytest.skip(f"cachestat is of no use here: {chosen.reason}")
    assert chosen.method == request.param
    assert chosen.reason is None
    return chosen


def test_c75_fresh_dirty_file_is_synced_and_then_gone(file: Path, residency: Residency) -> None:
    """Written a moment ago without fsync: DONTNEED alone would leave it."""
    assert residency.resident_bytes(file) == SIZE
    gone = evict([file], residency)
    assert gone == Eviction(total=SIZE, remaining=0, notes=())
    assert residency.resident_fraction([file]) == 0.0


def test_warm_reads_everything(file: Path, residency: Residency) -> None:
    evict([file], residency)
    assert warm([file], residency) == 1.0
    assert residency.resident_bytes(file) == SIZE


def test_part_of_a_file(file: Path, residency: Residency) -> None:
    evict([file], residency)
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
        os.pread(descriptor, 10, 5 * PAGE)
    finally:
        os.close(descriptor)
    seen = residency.resident_bytes(file)
    assert seen is not None
    assert PAGE <= seen < SIZE


def test_the_last_partial_page_is_evicted_too(folder: Path, residency: Residency) -> None:
    small = _write(folder / "small", 17)
    assert residency.resident_bytes(small) == 17
    assert evict([small], residency).remaining == 0


def test_several_files_and_an_empty_one(folder: Path, residency: Residency) -> None:
    files = [_write(folder / str(n), n * PAGE) for n in range(4)]
    assert residency.resident_fraction(files) == 1.0
    assert evict(files, residency) == Eviction(total=6 * PAGE, remaining=0, notes=())
    warm(files[:2], residency, threads=2)
    assert residency.resident_fraction(files) == pytest.approx(1 / 6)
    assert residency.resident_bytes(files[0]) == 0
    assert residency.resident_fraction([files[0]]) is None


def test_c75_pages_that_another_process_has_mapped_stay_and_are_told(
    file: Path, residency: Residency
) -> None:
    code = (
        "import mmap, sys\n"
        "with open(sys.argv[1], 'rb') as f:\n"
        "    m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)\n"
        "sum(m[::4096])\n"
        "print('mapped', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"mapped\n"
        held = evict([file], residency, pause=0.001)
        assert held.remaining == SIZE
        other.communicate()
    assert evict([file], residency).remaining == 0


def test_memory_file_systems_never_get_cold(residency: Residency) -> None:
    if not Path("/dev/shm").is_dir():
        pytest.skip("no /dev/shm")
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as held:
        path = _write(Path(held.name), SIZE)
        assert residency.resident_bytes(path) is None  # never tested there
        assert residency.method is not None
        there = choose_method(path, methods={residency.method: METHODS[residency.method]})
        assert evict([path], there, pause=0.001).remaining == SIZE


def _refusing(number: int) -> Measure:
    def measure(descriptor: int, offset: int, length: int) -> int:
        raise OSError(number, os.strerror(number))

    return measure


@pytest.mark.parametrize(
    "number", [errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP, errno.EACCES, errno.ENODEV]
)
def test_where_cachestat_is_refused_mincore_takes_over(file: Path, number: int) -> None:
    chosen = choose_method(file, methods={"cachestat": _refusing(number), "mincore": mincore})
    assert chosen.method == "mincore"
    assert chosen.reason == f"cachestat: {os.strerror(number)}"
    assert chosen.resident_bytes(file) == SIZE


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_c74_where_both_are_refused_nothing_is_claimed(file: Path, number: int) -> None:
    refused = _refusing(number)
    chosen = choose_method(file, methods={"cachestat": refused, "mincore": refused})
    assert chosen.method is None
    assert "cachestat" in (chosen.reason or "")
    assert "mincore" in (chosen.reason or "")
    assert chosen.resident_bytes(file) is None
    assert chosen.resident_fraction([file]) is None
    assert evict([file], chosen, pause=0.001) == Eviction(total=SIZE, remaining=None, notes=())
    assert warm([file], chosen) is None


def test_a_refusal_after_the_choice_is_unknown_too(file: Path) -> None:
    answers = iter([65536])

    def once(descriptor: int, offset: int, length: int) -> int:
        for answer in answers:
            return answer
        raise OSError(errno.EPERM, "no longer")

    chosen = choose_method(file, methods={"cachestat": once})
    assert chosen.method == "cachestat"
    assert chosen.resident_bytes(file) is None


def test_real_faults_are_not_swallowed(file: Path) -> None:
    with pytest.raises(OSError, match="Input/output"):
        choose_method(file, methods={"cachestat": _refusing(errno.EIO)})
    with pytest.raises(FileNotFoundError):
        choose_method(file.with_name("nothing"))
    with pytest.raises(FileNotFoundError):
        evict([file.with_name("nothing")])
    with pytest.raises(FileNotFoundError):
        warm([file.with_name("nothing")])


def test_a_method_that_always_says_nothing_is_not_trusted(file: Path) -> None:
    chosen = choose_method(file, methods={"cachestat": lambda *_: 0, "mincore": mincore})
    assert chosen.method == "mincore"
    assert "had just been read" in (chosen.reason or "")


def test_the_system_calls_report_refusals_as_errors(file: Path) -> None:
    with pytest.raises(OSError, match="cachestat") as caught:
        cachestat(987654, 0, 4096)
    assert caught.value.errno in (errno.EBADF, errno.ENOSYS)
    directory = os.open(file.parent, os.O_RDONLY)
    with pytest.raises(OSError, match="mmap") as caught:
        mincore(directory, 0, 4096)
    os.close(directory)
    assert caught.value.errno == errno.ENODEV


def test_mincore_in_pieces_counts_the_same(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loaders.system.pagecalls._PIECE", 4 * PAGE)
    chosen = choose_method(file, methods={"mincore": mincore})
    assert chosen.resident_bytes(file) == SIZE
    assert evict([file], chosen).remaining == 0


def test_nothing_to_try() -> None:
    assert choose_method().method is None
    assert UNKNOWN.resident_fraction([]) is None


def test_only_an_empty_file(folder: Path) -> None:
    assert choose_method(_write(folder / "empty", 0)).reason == "no file with content to try"


def _as_nobody(code: str, *arguments: str) -> str:
    """Runs `code` as a user without any privilege; its standard output."""
    prelude = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from bench.measuring.pagecache import drop_caches, evict, warm\n"
        "from loaders.system.pagecalls import mincore\n"
        "from loaders.system.residency import METHODS, choose_method\n"
        "path = Path(sys.argv[1])\n"
        f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", prelude + code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@root_only
def test_c74_other_peoples_file_mincore_would_lie_so_it_is_unknown(file: Path) -> None:
    """The kernel answers "all resident" there: tried first, on a file that isn't."""
    file.chmod(0o644)
    evict([file], choose_method(file))
    out = _as_nobody(
        "chosen = choose_method(path, methods={'mincore': mincore})\n"
        "print(chosen.method, chosen.resident_bytes(path), chosen.reason)\n",
        str(file),
    )
    assert out.startswith("None None mincore: the kernel answers 'all resident'")


@root_only
def test_other_peoples_file_that_may_be_written_is_told(file: Path) -> None:
    file.chmod(0o666)
    out = _as_nobody(
        "chosen = choose_method(path, methods={'mincore': mincore})\n"
        "print(chosen.method, evict([path], chosen).remaining)\n",
        str(file),
    )
    assert out == "mincore 0\n"


@root_only
def test_c74_without_privilege_own_files_are_still_evicted(folder: Path) -> None:
    file = _write(folder / "mine", SIZE)
    os.chown(file, NOBODY, NOBODY)
    out = _as_nobody(
        "reason = drop_caches()\n"
        "chosen = choose_method(path)\n"
        "print(reason)\n"
        "print(chosen.method is not None, evict([path], chosen).remaining)\n",
        str(file),
    )
    reason, outcome = out.splitlines()
    assert "can't write /proc/sys/vm/drop_caches: Permission denied" in reason
    assert "--drop-caches" in reason
    assert outcome == "True 0"


def test_c74_drop_caches_writes_the_switch(tmp_path: Path) -> None:
    switch = tmp_path / "proc/sys/vm/drop_caches"
    reason = drop_caches(tmp_path)
    assert reason is not None
    assert "No such file" in reason
    assert not switch.exists()
    switch.parent.mkdir(parents=True)
    switch.write_text("0\n")
    assert drop_caches(tmp_path) is None
    assert switch.read_text() == "1\n"


@root_only
def test_overlay_where_cachestat_is_blind(folder: Path) -> None:
    """An overlay's own inode has no pages: cachestat says 0 of a file that is cached."""
    for name in ("lower", "upper", "work", "merged"):
        (folder / name).mkdir()
    _write(folder / "lower" / "weights", SIZE)
    merged = folder / "merged"
    options = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
    done = subprocess.run(
        ["mount", "-t", "overlay", "coldload-test", "-o", options, str(merged)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"overlay can't be mounted here: {done.stderr.strip()}")
    try:
        file = merged / "weights"
        mount = mount_of(file)
        assert mount is not None
        assert mount.fs_type == "overlay"
        os.sync()  # an overlay's fsync leaves its lower layer alone
        chosen = choose_method(file)
        assert chosen.method is not None
        assert chosen.resident_bytes(file) is not None
        assert evict([file], chosen).remaining == 0
        assert warm([file], chosen) == 1.0
        assert evict([_write(merged / "new", SIZE)], chosen).remaining == 0
    finally:
        subprocess.run(["umount", str(merged)], check=True)


def test_read_only_files_that_cannot_be_synced_are_noted(
    file: Path, residency: Residency, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.sync()

    def refused(descriptor: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "fsync", refused)
    gone = evict([file], residency)
    assert gone.remaining == 0
    assert gone.notes == (f"{file}: fsync: Read-only file system",)


def test_a_disk_error_while_syncing_is_raised(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output"):
        evict([file])
