"""Where the host was not alone: what others did meanwhile is in the records, and is told."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.advice.company import flags, others_at_work
from bench.measuring.children import Server
from bench.measuring.surroundings import Look, Surroundings, company
from bench.page.terminal import render
from bench.record.records import Company, Sample, sample_from_json
from tests.tiny_advice import MMAP, times
from tests.tiny_bench import Ground
from tests.tiny_report import NBYTES, ceiling, load, made_run

TICKS = os.sysconf("SC_CLK_TCK")
PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 total=99999999\n"


def host(
    folder: Path,
    *,
    read: int = 0,
    written: int = 0,
    busy: int = 0,
    stolen: int = 0,
    waited: int = 0,
) -> None:
    """A made-up /proc: sectors of the disk nvme0n1, ticks, microseconds of pressure."""
    files = {
        "proc/stat": f"cpu  {busy} 0 0 900 50 0 0 {stolen} 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n",
        "proc/diskstats": (
            " 259 0 nvme0n1p1 1 0 77 0 1 0 77 0 0 0 0\n"
            f" 259 1 nvme0n1 1 0 {read} 0 1 0 {written} 0 0 0 0 0 0 0 0 0 0\n"
        ),
        "proc/loadavg": "1.25 0.50 0.10 2/300 1234\n",
        **{f"proc/pressure/{what}": PRESSURE.format(waited) for what in ("io", "cpu", "memory")},
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)  # in place: what is open already sees it


def test_what_happened_between_two_looks(tmp_path: Path) -> None:
    host(tmp_path, read=100, written=10, busy=5 * TICKS, stolen=TICKS, waited=1_000_000)
    around = Surroundings(tmp_path)
    before = around.look()
    host(tmp_path, read=300, written=50, busy=7 * TICKS, stolen=2 * TICKS, waited=1_500_000)
    seen = company(before, around.look(), "nvme0n1")
    around.close()
    assert seen == Company(
        disk="nvme0n1",
        disk_read_bytes=200 * 512,
        disk_written_bytes=40 * 512,
        cpu_seconds=2.0,
        stolen_seconds=1.0,
        io_pressure_seconds=0.5,
        cpu_pressure_seconds=0.5,
        memory_pressure_seconds=0.5,
        load=1.25,
    )


def test_what_the_kernel_does_not_tell_is_null(tmp_path: Path) -> None:
    around = Surroundings(tmp_path)
    assert company(around.look(), around.look(), "nvme0n1") == Company(disk="nvme0n1")
    around.close()


@pytest.mark.parametrize("disk", [None, "sda", "nvme0n1p"])
def test_a_storage_without_a_disk_has_no_bytes(tmp_path: Path, disk: str | None) -> None:
    host(tmp_path, read=100)
    around = Surroundings(tmp_path)
    seen = company(around.look(), around.look(), disk)
    around.close()
    assert (seen.disk_read_bytes, seen.disk_written_bytes) == (None, None)
    assert seen.cpu_seconds == 0.0


def test_a_counter_that_went_back_is_no_figure(tmp_path: Path) -> None:
    host(tmp_path, read=100)
    around = Surroundings(tmp_path)
    before = around.look()
    host(tmp_path, read=7)
    assert company(before, around.look(), "nvme0n1").disk_read_bytes is None
    around.close()


@pytest.mark.parametrize("text", ["", "cpu\n", "none\n", "some\n", "a b c d\n"])
def test_files_of_another_form_are_not_understood_as_figures(text: str) -> None:
    paths = ("/proc/stat", "/proc/diskstats", "/proc/pressure/io")
    look: Look = {path: text.encode() for path in paths}
    assert company(look, look, "nvme0n1") == Company(disk="nvme0n1")


def test_many_disks_are_read_to_the_last(tmp_path: Path) -> None:
    host(tmp_path, read=8)
    path = tmp_path / "proc/diskstats"
    path.write_text("   7 0 loop0 0 0 0 0 0 0 0 0 0 0 0\n" * 5000 + path.read_text())
    around = Surroundings(tmp_path)
    assert company(around.look(), around.look(), "nvme0n1").disk_read_bytes == 0
    around.close()


def test_the_real_host_is_seen_with_nothing_but_open_files() -> None:
    around = Surroundings()
    before = around.look()
    seen = company(before, around.look(), None)
    around.close()
    if "/proc/stat" not in before:
        pytest.skip("no /proc/stat here")
    assert seen.cpu_seconds is not None
    assert seen.cpu_seconds >= 0.0
    assert around.look() == {}


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground.lay(tmp_path_factory.mktemp("company"))


@pytest.fixture(scope="module")
def server(ground: Ground) -> Iterator[Server]:
    server = Server(ground.work / "children.log")
    yield server
    server.close()


def test_a_sample_holds_its_company_and_its_record_gives_it_back(
    server: Server, ground: Ground
) -> None:
    around = Surroundings()
    job = replace(ground.job("example"), surroundings=around)
    sample = ground.sample(server, job)
    around.close()
    assert sample.status == "ok"
    assert sample.company is not None
    assert sample_from_json(sample.to_json()) == sample


def test_older_records_have_no_company() -> None:
    line = load("parallel", 1.0).to_json()
    del line["company"]
    assert sample_from_json(line).company is None


def disturbed(**seen: float) -> Sample:
    return replace(load("parallel", 1.0), company=Company(**seen))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"disk_read_bytes": NBYTES + 500_000_000}, "others read up to 0.50 GB from the same disk"),
        ({"disk_written_bytes": 2 * NBYTES}, "others wrote up to 2.00 GB to the same disk"),
        ({"cpu_seconds": 2.0}, "others kept up to 1.5 cores busy"),
        ({"stolen_seconds": 0.9}, "the hypervisor gave up to 0.9 of this machine's cores"),
        ({"memory_pressure_seconds": 0.5}, "waited for memory, up to 50 % of the time"),
    ],
)
def test_each_sign_is_told_with_its_figure(seen: dict[str, float], words: str) -> None:
    run = made_run(disturbed(**seen), load("example", 1.0))
    (said,) = others_at_work(run)
    assert said.startswith("During 1 of 1 sample ")
    assert words in said
    assert said in flags(run)
    assert f"Note: {said[:40]}" in render(run)


def test_what_a_sample_does_itself_is_no_company() -> None:
    own = {
        "disk_read_bytes": NBYTES,
        "disk_written_bytes": 0,
        "cpu_seconds": 0.55,
        "stolen_seconds": 0.0,
        "memory_pressure_seconds": 0.01,
        "io_pressure_seconds": 1.0,  # its own waiting
        "load": 40.0,  # of a minute ago
    }
    assert others_at_work(made_run(disturbed(**own))) == []


@pytest.mark.parametrize(("phase", "told"), [("stage", 0), ("ranks", 0), ("disk_to_host", 1)])
def test_writing_is_what_staging_does(phase: str, told: int) -> None:
    sample = replace(disturbed(disk_written_bytes=NBYTES), phase=phase)
    assert len(others_at_work(made_run(sample))) == told


def test_ranks_work_in_processes_of_their_own() -> None:
    sample = replace(disturbed(cpu_seconds=9.0), phase="ranks")
    assert others_at_work(made_run(sample)) == []


@given(st.integers(0, 4 * NBYTES))
def test_more_company_is_never_told_as_less(extra: int) -> None:
    said = others_at_work(made_run(disturbed(disk_read_bytes=NBYTES + extra)))
    assert bool(said) == (extra > NBYTES // 10)


def test_a_host_that_was_alone() -> None:
    assert flags(made_run(*times("pt", 1.0), *times("direct-ring", 2.0, ceiling))) == []


def test_signs_of_company() -> None:
    crowded = load("pt", 1.0)
    crowded = replace(crowded, cache=replace(crowded.cache, group_read_bytes=1_500_000_000))
    late = load("eager", 1.0)
    samples = [
        crowded,
        replace(late, status="failed", reason="the clocks disagree"),
        late,
        *times("safetensors-mmap", 1.0, **MMAP),
        *times("safetensors-mmap", 2.0, options={"twin": True}, **MMAP),
        ceiling("direct-ring", 1.0, 1),
        ceiling("direct-ring", 3.0, 2),
    ]
    found_flags = flags(made_run(*samples))
    assert len(found_flags) == 4
    assert "two clocks disagreed" in found_flags[0]
    assert "0.50 GB" in found_flags[1]
    assert "differed from itself by 100 %" in found_flags[2]
    assert "from 1.00 to 3.00 GB/s" in found_flags[3]
