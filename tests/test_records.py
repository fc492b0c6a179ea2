"""Records: nothing that was measured is lost, and what is read is what was written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.record.records import (
    RECORDS,
    CacheRecord,
    RecordsError,
    Sample,
    Seconds,
    StorageRecord,
    Writer,
    measured,
    read_run,
    sample_from_json,
)

ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "tests" / "golden" / RECORDS
PLAN = {"kind": "plan", "schema": 1, "passes": 2, "cases": ["a/x", "b/y"]}

SAMPLE = Sample(
    case="a/x",
    phase="disk_to_host",
    loader="pt",
    options={"mmap": True},
    threads=2,
    model="m",
    size=100,
    dtype="bfloat16",
    storage=StorageRecord(label="nvme", file_system="ext4", mount="/mnt", device="vda"),
    pass_number=1,
    status="ok",
    bytes=100,
    seconds=Seconds(open=0.1, read=0.2, total=0.3),
    cache=CacheRecord(requested="cold", resident_before=0.0, state="cold"),
    details={"notes": ["ü"]},
)


def write(folder: Path, *samples: Sample, plan: Any = PLAN) -> Path:
    writer = Writer(folder)
    writer.append(plan)
    for sample in samples:
        writer.append(sample.to_json())
    writer.close()
    return writer.path


def test_the_golden_file_loads() -> None:
    """Written by schema 1: it must be readable for good."""
    run = read_run(GOLDEN)
    assert not run.cut
    assert run.plan is not None
    assert run.plan["seed"] == 1093710862
    assert run.host is not None
    assert run.host["residency"] == {"ext4": "cachestat"}
    one, two = run.samples
    assert one.options == {"block_mib": 16}
    assert one.seconds == Seconds(open=0.0, allocate=0.0001, read=0.41, consume=0.05, total=0.4601)
    assert one.cache.state == "cold"
    assert one.storage == StorageRecord(label="ext4", file_system="ext4", mount="/", device="vda")
    assert (one.bytes, one.pass_number, one.verified) == (534810624, 1, True)
    assert (two.status, two.reason, two.storage) == ("skipped", "fio isn't installed", None)
    assert two.seconds == Seconds()
    assert measured(run.samples) == (one,)
    assert run.missing() == {case: [2] for case in run.plan["cases"]}


def test_the_golden_lines_have_every_field_that_a_line_has_now() -> None:
    """Fields may be added, which needs no new schema; none may go or get another name."""
    first = json.loads(GOLDEN.read_text().splitlines()[2])
    now = SAMPLE.to_json()
    assert first.keys() <= now.keys()
    for part in ("seconds", "cache", "storage"):
        assert first[part].keys() <= now[part].keys()


def test_there_and_back(tmp_path: Path) -> None:
    other = replace(
        SAMPLE, case="b/y", storage=None, status="failed", reason="it\nbroke", bytes=None
    )
    write(tmp_path, SAMPLE, other)
    run = read_run(tmp_path)
    assert run.samples == (SAMPLE, other)
    assert run == read_run(tmp_path / RECORDS)
    assert run.plan == PLAN
    assert run.host is None
    assert not run.cut


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(
    st.text(max_size=10),
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
    st.none() | st.integers(0, 2**63),
    st.dictionaries(st.text(max_size=5), json_values, max_size=3),
)
def test_any_sample_comes_back(
    reason: str, seconds: float | None, count: int | None, details: dict[str, Any]
) -> None:
    sample = replace(
        SAMPLE, reason=reason, seconds=Seconds(open=seconds), bytes=count, details=details
    )
    line = json.dumps(sample.to_json(), allow_nan=False)
    assert "\n" not in line
    assert sample_from_json(json.loads(line)) == sample


def test_null_is_never_nought() -> None:
    line = replace(SAMPLE, bytes=None, seconds=Seconds(), cpu_seconds=None).to_json()
    for key in ("bytes", "cpu_seconds", "minor_faults", "major_faults", "peak_rss_bytes"):
        assert line[key] is None
    assert set(line["seconds"].values()) == {None}
    assert line["cache"]["device_read_bytes"] is None


def test_what_is_not_a_number_is_refused_before_it_is_written(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    with pytest.raises(ValueError, match="JSON"):
        writer.append({"x": float("nan")})
    writer.append(PLAN)
    writer.close()
    assert read_run(tmp_path).plan == PLAN


def test_every_line_is_on_disk_at_once(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for number in range(1, 4):
        writer.append(replace(SAMPLE, pass_number=number).to_json())
        assert [sample.pass_number for sample in read_run(tmp_path).samples] == [
            *range(1, number + 1)
        ]
    writer.close()


@pytest.mark.parametrize("keep", [1, 10, -2, -1])
def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path, keep: int) -> None:
    path = write(tmp_path, SAMPLE)
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines(keepends=True)[-1][:keep])
    run = read_run(tmp_path)
    assert run.cut
    assert run.samples == (SAMPLE,)


def test_no_records(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match=r"records\.jsonl: No such file.*give a run's folder"):
        read_run(tmp_path)
    with pytest.raises(RecordsError, match="No such file"):
        read_run(tmp_path / "nowhere")
    (tmp_path / RECORDS).touch()
    run = read_run(tmp_path)
    assert (run.plan, run.samples, run.cut, run.missing()) == (None, (), False, {})


def test_two_runs_never_share_a_file(tmp_path: Path) -> None:
    write(tmp_path, SAMPLE)
    with pytest.raises(RecordsError, match="holds a run already; name a new folder"):
        Writer(tmp_path)
    assert read_run(tmp_path).samples == (SAMPLE,)


def test_what_is_missing(tmp_path: Path) -> None:
    failed = replace(SAMPLE, status="failed", pass_number=2)
    write(tmp_path, SAMPLE, failed, replace(SAMPLE, case="b/y", pass_number=2))
    assert read_run(tmp_path).missing() == {"b/y": [1]}


LIMITED = textwrap.dedent(
    """
    import json, resource, sys
    from pathlib import Path
    from bench.record.records import Writer, read_run
    from tests.test_records import SAMPLE
    folder = Path(sys.argv[1])
    line = json.dumps(SAMPLE.to_json())
    limit = int(2.5 * (len(line) + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    writer = Writer(folder)
    for number in range(2):
        writer.append(SAMPLE.to_json())
    for attempt in range(3):  # half of the line fits, each time
        try:
            writer.append(SAMPLE.to_json())
        except OSError as error:
            print(error)
    run = read_run(folder)
    assert run.samples == (SAMPLE, SAMPLE) and not run.cut, run
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    writer.append(SAMPLE.to_json())  # there is room again
    assert len(read_run(folder).samples) == 3
    """
)


def test_a_full_disk_costs_the_line_in_flight_and_no_other(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(str(tmp_path / RECORDS)) == 3
    assert "whole up to byte" in done.stdout


def _fill(writer: Writer, written: list[Sample]) -> None:
    for _ in range(1000):
        writer.append(SAMPLE.to_json())
        written.append(SAMPLE)


def test_a_really_full_file_system(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(tmp_path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        writer = Writer(tmp_path)
        written: list[Sample] = []
        with pytest.raises(OSError, match=r"records\.jsonl \(whole up to byte \d+\)"):
            _fill(writer, written)
        writer.close()
        run = read_run(tmp_path)
        assert not run.cut
        assert run.samples == tuple(written)
        assert len(written) > 3
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_killed_writer_leaves_every_finished_line(tmp_path: Path) -> None:
    script = (
        "import itertools, sys\n"
        "from pathlib import Path\n"
        "from bench.record.records import Writer\n"
        "from tests.test_records import SAMPLE\n"
        "writer = Writer(Path(sys.argv[1]))\n"
        "for number in itertools.count():\n"
        "    writer.append(SAMPLE.to_json())\n"
        "    print(number, flush=True)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    seen = [int(child.stdout.readline()) for _ in range(5)]
    os.kill(child.pid, signal.SIGKILL)
    seen += [int(line) for line in child.stdout]
    child.stdout.close()
    child.wait()
    run = read_run(tmp_path)
    assert len(run.samples) >= len(seen)
    assert all(sample == SAMPLE for sample in run.samples)
