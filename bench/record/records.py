"""The record of a run: one JSON object a line in `<run>/records.jsonl`.

A `plan` line (every case of the run, so that what is missing can be told), a `host` line, then one
`sample` line for each contestant in each pass. Only what was observed is stored: rates, ratios and
statistics are computed on reading. Absent is null, never 0.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from bench.record.lines import LineError, NewerError, parsed

SCHEMA = 1
RECORDS = "records.jsonl"
LONGEST_LINE = 64 << 20
"""Bytes. A plan of ten thousand cases has two million."""

Status = Literal["ok", "failed", "skipped"]
State = Literal["cold", "warm", "mixed", "unverified", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Where the time of one sample went, in seconds; null where the phase has no such part."""

    open: float | None = None
    allocate: float | None = None
    read: float | None = None
    consume: float | None = None
    transfer: float | None = None
    slice: float | None = None
    quantise: float | None = None
    layout: float | None = None
    total: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRecord:
    """Asked, and seen: `resident_before` (and `resident_after`, where it was to be warm) is a
    fraction of the files' pages, `device_read_bytes` what the measuring process fetched from the
    device, `group_read_bytes` what its control group did meanwhile (others in the group included);
    null where nothing can tell."""

    requested: str
    resident_before: float | None = None
    resident_after: float | None = None
    device_read_bytes: int | None = None
    group_read_bytes: int | None = None
    state: State = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRecord:
    """Where the files lay: what it was called, and what it is."""

    label: str
    file_system: str | None = None
    mount: str | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    """What went on on the whole host while the sample was timed, the sample's own part included:
    bytes of the storage's disk, seconds of all processors (at work; given to others by a
    hypervisor), seconds in which some task waited (Linux's pressure figures), and the load of the
    last minute. Null where the kernel doesn't tell."""

    disk: str | None = None
    disk_read_bytes: int | None = None
    disk_written_bytes: int | None = None
    cpu_seconds: float | None = None
    stolen_seconds: float | None = None
    io_pressure_seconds: float | None = None
    cpu_pressure_seconds: float | None = None
    memory_pressure_seconds: float | None = None
    load: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One contestant in one pass. `bytes` are payload bytes that arrived. `peak_rss_bytes` is the
    child's high-water mark and `rss_before_bytes` what it held before, so that their difference is
    the load's own. `runner_seconds` and `child_seconds` are their clocks from go to done,
    `wall_seconds` the whole sample with preparation and proof; `system_seconds` is the kernel's
    part of `cpu_seconds`. `details` holds what was found out on the way (block size,
    fall-backs)."""

    case: str
    phase: str
    loader: str
    options: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None
    model: str
    size: int
    dtype: str
    storage: StorageRecord | None = None
    device: str = "cpu"
    layout: str = "tp1"
    pass_number: int
    status: Status
    reason: str | None = None
    smoke: bool = False
    bytes: int | None = None
    seconds: Seconds = Seconds()
    runner_seconds: float | None = None
    child_seconds: float | None = None
    wall_seconds: float | None = None
    cache: CacheRecord
    cpu_seconds: float | None = None
    system_seconds: float | None = None
    minor_faults: int | None = None
    major_faults: int | None = None
    peak_rss_bytes: int | None = None
    rss_before_bytes: int | None = None
    rss_anon_bytes: int | None = None
    rss_file_bytes: int | None = None
    ownership: str | None = None
    verified: bool | None = None
    verified_reason: str | None = None
    company: Company | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The sample as the line says it (`pass_number` is `pass` there)."""
        body = asdict(self)
        body["pass"] = body.pop("pass_number")
        return {"kind": "sample", "schema": SCHEMA, **body}


def sample_from_json(line: Mapping[str, Any]) -> Sample:
    """The sample of one line that fits its version's table. Keys of newer versions are passed
    over."""
    body = _known(Sample, {**line, "pass_number": line["pass"]})
    body["seconds"] = Seconds(**_known(Seconds, line.get("seconds") or {}))
    body["cache"] = CacheRecord(**_known(CacheRecord, line["cache"]))
    for name, cls in (("storage", StorageRecord), ("company", Company)):
        there = line.get(name)  # older runs have no company
        body[name] = cls(**_known(cls, there)) if there else None
    return Sample(**body)


def _known(cls: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(cls)}
    return {key: value for key, value in found.items() if key in names}


class RecordsError(Exception):
    """A run's records can't be read or begun: which file, what was found, what to do."""


class Writer:
    """Appends lines so that each is whole on disk, or absent: one write call a line, then fsync.

    The file is new: a RecordsError if the folder holds a run already, since two runs in one file
    would be taken for passes of one.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / RECORDS
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, flags, 0o644)
        except OSError as error:
            if self.path.exists():
                reason = "holds a run already; name a new folder"
            else:
                reason = f"{error.strerror}; name another folder for the records with --run-dir="
            raise RecordsError(f"{self.path}: {reason}") from error

    def append(self, line: Mapping[str, Any]) -> None:
        """OSError, with the file's name, where the disk takes no more: then the line isn't there,
        and everything before it is."""
        data = (json.dumps(line, allow_nan=False) + "\n").encode()
        before = os.fstat(self._fd).st_size
        try:
            written = os.write(self._fd, data)
            if written != len(data):
                raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes fitted")
            os.fsync(self._fd)
        except OSError as error:
            os.ftruncate(self._fd, before)  # a part of a line must not stay, nor an unsynced one
            where = f"{self.path} (whole up to byte {before})"
            raise OSError(error.errno, error.strerror, where) from error

    def close(self) -> None:
        """No line is lost without it: each was synced."""
        os.close(self._fd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run left behind. `cut` says that its last line was, `broken` has the numbers of lines
    that were passed over, `doubts` what of the others was taken as unknown, since it didn't fit."""

    path: Path
    plan: Mapping[str, Any] | None
    host: Mapping[str, Any] | None
    samples: tuple[Sample, ...]
    cut: bool = False
    broken: tuple[int, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def cores(self) -> int:
        """Those that the run might use; 1 where it doesn't tell."""
        return int((self.host or {}).get("cores", 1))

    def settled(self) -> tuple[Sample, ...]:
        """The last sample of each case in each pass: one that was thrown out because its clocks
        disagreed is followed by the one that was taken instead."""
        last = {(sample.case, sample.pass_number): sample for sample in self.samples}
        return tuple(last.values())

    def missing(self) -> dict[str, list[int]]:
        """Planned cases without a sample: case id -> the passes that aren't there."""
        if self.plan is None:
            return {}
        there = {(sample.case, sample.pass_number) for sample in self.samples}
        absent = {
            case: [
                number
                for number in range(1, self.plan.get("passes", 0) + 1)
                if (case, number) not in there
            ]
            for case in self.plan.get("cases", ())
        }
        return {case: passes for case, passes in absent.items() if passes}


def read_run(folder: Path, *, skip_broken: bool = False) -> Run:
    """Reads `<folder>/records.jsonl` (or that file itself). A last line that was cut off by a kill
    is left out and `cut` is set; any other bad line is a RecordsError with its number, or, with
    `skip_broken`, left out and counted, as long as there are good ones; then a value of a plan or a
    host line that doesn't fit is left out too, and named. Lines of a newer schema are always an
    error: who skipped them would show half a run."""
    path = folder / RECORDS if folder.is_dir() else folder
    found: dict[str, Mapping[str, Any]] = {}
    samples, broken, doubts, cut = [], [], [], False
    for number, raw in _lines(path):
        if not raw.endswith(b"\n"):
            cut = True
            break
        if not raw.strip():
            continue
        try:
            line, faults = parsed(raw)
            if faults and not skip_broken:
                raise LineError(str(faults[0]))
        except NewerError as error:
            raise RecordsError(f"{path}:{number}: {error}; update coldload") from error
        except LineError as error:
            if not skip_broken:
                raise RecordsError(f"{path}:{number}: not a coldload record ({error})") from error
            broken.append(number)
            continue
        doubts += [f"line {number}: {fault}" for fault in faults]
        if line["kind"] == "sample":
            samples.append(sample_from_json(line))
        else:
            found[line["kind"]] = line
    if broken and not found and not samples:
        raise RecordsError(f"{path}: no line of it is a coldload record; give a run's folder")
    return Run(
        path=path,
        plan=found.get("plan"),
        host=found.get("host"),
        samples=tuple(samples),
        cut=cut,
        broken=tuple(broken),
        doubts=tuple(doubts),
    )


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a regular file, with their numbers. One that is longer than any of ours comes
    in pieces, of which none is a record."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise RecordsError(f"{path}: expected a file of records, found something else")
        with path.open("rb") as file:
            number, begins = 1, True
            while raw := file.readline(LONGEST_LINE):
                ends = raw.endswith(b"\n")
                if begins and (ends or len(raw) < LONGEST_LINE):
                    yield number, raw
                elif begins:
                    yield number, b"(a line too long)\n"
                number, begins = number + ends, ends
    except OSError as error:
        raise RecordsError(f"{path}: {error.strerror}; give a run's folder, as in runs/") from error


def measured(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    """Those that have a time to be compared."""
    return tuple(sample for sample in samples if sample.status == "ok")
