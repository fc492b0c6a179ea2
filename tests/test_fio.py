"""fio: what it says is understood, and what it refuses is said."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from bench.measuring import fio
from bench.measuring.fio import FioError, FioResult, arguments, parse

GOLDEN = Path(__file__).parent / "golden" / "fio-3.33.json"
needs_fio = pytest.mark.skipif(not fio.installed(), reason="fio isn't installed")


def report(**changes: Any) -> str:
    return json.dumps(
        {"jobs": [{"error": 0, "read": {"io_bytes": 100, "bw_bytes": 50}, **changes}]}
    )


def test_a_real_report() -> None:
    """Two files, one of which ends within a block: fio reads whole blocks. The report follows a
    note in plain text."""
    text = GOLDEN.read_text()
    assert text.startswith("note: ")
    found = parse(text, "psync")
    assert (found.nbytes, found.engine) == (4 * (4 << 20), "psync")
    runtime = json.loads(text[text.index("{") :])["jobs"][0]["read"]["runtime"] / 1000
    assert found.seconds == pytest.approx(runtime, abs=0.001)


def test_text_before_and_behind() -> None:
    expected = FioResult(nbytes=100, seconds=2.0, engine="x")
    assert parse("fio: warning\n" + report(), "x") == expected
    assert parse(report() + "\nfio: this is the end", "x") == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "fio gave no JSON: nothing"),
        ("fio: engine not found\n", "fio gave no JSON: fio: engine not found"),
        ("{", "isn't of a known form .JSONDecodeError"),
        ("{}", "isn't of a known form .KeyError: 'jobs'"),
        ('{"jobs": []}', "isn't of a known form .IndexError"),
        ('{"jobs": [null]}', "isn't of a known form .TypeError"),
        ('{"jobs": [{"error": 0}]}', "isn't of a known form .KeyError: 'read'"),
        (report(error=22), r"fio stopped with error 22 \(Invalid argument\)"),
        (report(read={"io_bytes": 0, "bw_bytes": 0}), "fio read nothing"),
        (report(read={"io_bytes": 5, "bw_bytes": 0}), "fio read nothing"),
    ],
)
def test_what_fio_says_instead_is_told(text: str, words: str) -> None:
    with pytest.raises(FioError, match=words):
        parse(text, "x")


def filename(files: list[str]) -> str:
    (found,) = [part for part in arguments(files, "libaio") if part.startswith("--filename=")]
    return found.removeprefix("--filename=")


def test_names_with_colons_are_escaped() -> None:
    assert filename(["/a:b/c", "/d"]) == r"/a\:b/c:/d"
    assert "--ioengine=libaio" in arguments(["/d"], "libaio")
    assert "--readonly" in arguments(["/d"], "libaio")


def test_no_more_names_than_fio_takes() -> None:
    many = [f"/mnt/models/deepseek/model-{number:05}-of-00163.safetensors" for number in range(163)]
    text = filename(many)
    assert 3900 < len(text) < 4096
    assert text.split(":") == many[: len(text.split(":"))]
    with pytest.raises(FioError, match="at most 4096 bytes in all: /mnt/ü"):
        filename(["/mnt/" + "ü" * 2100])


def fake_fio(folder: Path, script: str) -> None:
    program = folder / "fio"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def test_the_next_engine_where_one_is_forbidden(path: Path) -> None:
    fake_fio(path, f"case $* in *io_uring*) echo no >&2; exit 1;; esac; echo '{report()}'")
    assert fio.run(["/x"], 10) == FioResult(nbytes=100, seconds=2.0, engine="libaio")


def test_what_every_engine_said(path: Path) -> None:
    fake_fio(path, "echo broken >&2; exit 1")
    with pytest.raises(FioError, match="io_uring: broken; libaio: broken; psync: broken"):
        fio.run(["/x"], 10)


def test_an_engine_that_ends_well_without_a_report_is_not_the_last_word(path: Path) -> None:
    fake_fio(path, f"case $* in *psync*) echo '{report()}';; *) echo hm;; esac")
    assert fio.run(["/x"], 10).engine == "psync"


def test_a_fio_that_hangs_or_cannot_be_run_is_an_error_of_its_own(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_fio(path, "exec sleep 100")
    with pytest.raises(FioError, match=r"fio \(io_uring\) didn't end within 0.1 s"):
        fio.run(["/x"], 0.1)
    monkeypatch.setenv("PATH", str(path / "empty"))
    with pytest.raises(FioError, match="fio can't be run"):
        fio.run(["/x"], 10)


@needs_fio
def test_really_reading(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("a:b.bin", "with blank.bin")]
    for name in names:
        Path(name).write_bytes(os.urandom(5 << 20))
    found = fio.run(names, 60)
    assert found.nbytes == 2 * (4 << 20)
    assert found.seconds > 0


@needs_fio
def test_files_that_fio_cannot_read(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"x" * 5000)
    for name in ("small", "absent"):
        with pytest.raises(FioError, match=r"^io_uring: .*; libaio: .*; psync: .*$"):
            fio.run([str(tmp_path / name)], 60)
