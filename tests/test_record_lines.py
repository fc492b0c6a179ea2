"""Lines of a record that strangers wrote, cut or changed: what is wrong is named."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from bench.record.records import (
    RECORDS,
    SCHEMA,
    CacheRecord,
    Company,
    RecordsError,
    Seconds,
    StorageRecord,
    Writer,
    read_run,
)
from bench.record.shapes import TEXT, VERSIONS, Fields
from tests.test_records import GOLDEN, PLAN, SAMPLE, write


def changed(**fields: Any) -> str:
    return json.dumps({**SAMPLE.to_json(), **fields})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "no JSON: Expecting property name"),
        ("", ""),
        ("[1]", "expected a mapping, found a list of 1"),
        ("null", "expected a mapping, found nothing"),
        ("17", "expected a mapping, found 17"),
        ("9" * 5000, "no JSON: Exceeds the limit"),
        ("[" * 100_000, "lists and mappings too deep"),
        ('{"a": ' + "[" * 50 + "]" * 50 + "}", "lists and mappings too deep"),
        ("{}", "schema: expected a number up to 1, found nothing"),
        ('{"schema": 0, "kind": "plan"}', "schema: expected a number from 1 to 1, found 0"),
        ('{"schema": true, "kind": "plan"}', "schema: expected a number up to 1, found True"),
        ('{"schema": 1}', "kind: expected plan, host or sample, found nothing"),
        ('{"schema": "1", "kind": "plan"}', "schema: expected a number up to 1, found '1'"),
        ('{"schema": 1, "kind": "plan", "passes": "3"}', "passes: expected a number of passes"),
        ('{"schema": 1, "kind": "plan", "passes": 1e3}', "passes: expected a number of passes"),
        ('{"schema": 1, "kind": "plan", "passes": 99999999}', "passes: expected a number of pass"),
        ('{"schema": 1, "kind": "plan", "cases": "a"}', "cases: expected a list, found 'a'"),
        ('{"schema": 1, "kind": "host", "cores": 0}', "cores: expected a whole number from 1 on"),
        ('{"schema": 1, "kind": "sample"}', "cache: expected a mapping, found nothing; case: "),
        (
            changed(seconds={"total": "fast"}),
            "seconds.total: expected seconds, 0 or at least a nan",
        ),
        (
            changed(seconds={"total": 5e-324}),
            "seconds.total: expected seconds, 0 or at least a nan",
        ),
        (changed(seconds={"total": float("nan")}), "seconds.total: expected seconds, 0 or"),
        (changed(seconds=[]), "seconds: expected a mapping, found a list of 0"),
        (changed(cache={}), "cache.requested: expected a name, found nothing"),
        (changed(case=None), "case: expected a name, found nothing"),
        (changed(storage={"mount": "/"}), "storage.label: expected a name, found nothing"),
        (changed(status="fine"), "status: expected one of ok, failed, skipped, found 'fine'"),
        (changed(bytes=-1), "bytes: expected a whole number from 0 on, found -1"),
        (changed(bytes=10**30), "bytes: expected a whole number from 0 on, found a number beyond"),
        (changed(ownership=""), "ownership: expected a name, found ''"),
        ("\udcff", "no JSON: invalid start byte at byte 0"),
    ],
)
def test_a_bad_line_in_the_middle_is_an_error_with_its_number(
    tmp_path: Path, line: str, words: str
) -> None:
    path = tmp_path / RECORDS
    path.write_bytes(
        "\n".join([json.dumps(PLAN), line, json.dumps(SAMPLE.to_json()), ""]).encode(
            errors="surrogateescape"
        )
    )
    if not words:
        assert read_run(tmp_path).samples == (SAMPLE,)
        return
    with pytest.raises(RecordsError) as caught:
        read_run(tmp_path)
    assert str(caught.value).startswith(f"{path}:2: not a coldload record ({words}")


def test_a_value_that_does_not_fit_is_unknown_and_named(tmp_path: Path) -> None:
    memory = {"usable_bytes": []}
    facts = {"memory": memory, "storage": {"here": 1, "there": None}}
    host = {"kind": "host", "schema": 1, "cores": "two", "host": facts}
    odd = replace(SAMPLE, details={"notes": "one", "absent_bytes": 3, "of": ["others"]})
    path = tmp_path / RECORDS
    lines = [{**PLAN, "passes": -1, "model": None}, host, odd.to_json()]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    run = read_run(tmp_path, skip_broken=True)
    assert run.plan == {key: value for key, value in PLAN.items() if key != "passes"}
    assert run.host == {"kind": "host", "schema": 1, "host": {"memory": {}, "storage": {}}}
    assert run.cores == 1
    assert run.samples[0].details == {"absent_bytes": 3, "of": ["others"]}
    assert run.missing() == {}
    assert run.doubts == (
        "line 1: passes: expected a number of passes, found -1",
        "line 2: cores: expected a whole number from 1 on, found 'two'",
        "line 2: host.memory.usable_bytes: expected a whole number from 0 on, found a list of 0",
        "line 2: host.storage.here: expected a mapping, found 1",
        "line 3: details.notes: expected a list, found 'one'",
    )
    with pytest.raises(RecordsError, match=r":1: not a coldload record \(passes: expected"):
        read_run(tmp_path)


def test_every_field_of_a_sample_stands_in_the_newest_table() -> None:
    newest = VERSIONS[SCHEMA]
    assert newest.sample.known.keys() == SAMPLE.to_json().keys() - {"kind", "schema"}
    parts = {"seconds": Seconds, "cache": CacheRecord, "storage": StorageRecord, "company": Company}
    for name, cls in parts.items():
        shape = newest.sample.known[name]
        assert isinstance(shape, Fields)
        assert shape.known.keys() == {field.name for field in fields(cls)}


def test_an_older_schema_loads_when_there_is_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    strict = replace(VERSIONS[1], sample=Fields({"watts": TEXT}, frozenset({"watts"})))
    monkeypatch.setitem(VERSIONS, 2, strict)
    assert len(read_run(GOLDEN).samples) == 2


@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_line_longer_than_any_of_ours_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes
) -> None:
    path = write(tmp_path, SAMPLE)
    longest = max(map(len, path.read_bytes().splitlines())) + 1
    monkeypatch.setattr("bench.record.records.LONGEST_LINE", longest)
    whole = path.read_bytes()
    path.write_bytes(b"x" * 5 * longest + b"\n" + whole + b"y" * 5 * longest + end)
    run = read_run(tmp_path, skip_broken=True)
    assert (run.samples, run.plan, run.broken) == ((SAMPLE,), PLAN, (1, 4))


def test_what_is_no_file_of_records_is_not_read() -> None:
    with pytest.raises(RecordsError, match="expected a file of records, found something else"):
        read_run(Path("/dev/zero"))


def test_a_newer_schema_is_refused_and_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / RECORDS).write_text('{"kind": "plan", "schema": 2}\n')
    with pytest.raises(RecordsError, match=r":1: schema 2 is newer.*1; update coldload"):
        read_run(tmp_path)


def test_fields_and_kinds_of_a_newer_version_are_passed_over(tmp_path: Path) -> None:
    line = SAMPLE.to_json()
    line["watts"] = 3
    for part in ("seconds", "cache", "storage"):
        line[part]["more"] = 4
    writer = Writer(tmp_path)
    writer.append(line)
    writer.append({"kind": "weather", "schema": 1})
    writer.close()
    assert read_run(tmp_path).samples == (SAMPLE,)
