"""fio, where it is installed: a stranger's word on what the storage gives, in the same passes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass


class FioError(Exception):
    """fio could not measure: what it said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FioResult:
    """Bytes read, seconds of reading by fio's own clock, and the engine that it used."""

    nbytes: int
    seconds: float
    engine: str


def installed() -> bool:
    return shutil.which("fio") is not None


BLOCK = 4 << 20
"""Bytes of a read. fio refuses files that are smaller than that."""

LONGEST = 4096
"""fio refuses a longer list of names (3.33: "value exceeds max length"). Some shards will do."""


def arguments(files: Sequence[str], engine: str) -> list[str]:
    """Direct sequential reads of whole files, 32 blocks of 4 MiB in flight (one where the engine
    has no more): of the first files, as many as fio takes."""
    names = _names(files)
    return [
        "fio",
        "--name=ceiling",
        "--readonly",
        "--rw=read",
        "--direct=1",
        f"--bs={BLOCK}",
        f"--ioengine={engine}",
        "--iodepth=32",
        f"--filename={names}",
        "--file_service_type=sequential",
        "--output-format=json",
    ]


def _names(files: Sequence[str]) -> str:
    """Separated by colons, and those within a name escaped. FioError if not even one fits."""
    names = ""
    for file in files:
        longer = ":".join(filter(None, [names, file.replace(":", r"\:")]))
        if len(os.fsencode(longer)) >= LONGEST:
            break
        names = longer
    if not names:
        raise FioError(f"fio takes names of at most {LONGEST} bytes in all: {files[0]}")
    return names


def parse(text: str, engine: str) -> FioResult:
    """From fio's JSON, which may follow warnings in plain text. FioError."""
    start = text.find("{")
    if start < 0:
        raise FioError(f"fio gave no JSON: {text.strip()[:200] or 'nothing'}")
    try:
        # Warnings can also come behind it.
        job = json.JSONDecoder().raw_decode(text[start:])[0]["jobs"][0]
        error, read = job["error"], job["read"]
        nbytes, rate = read["io_bytes"], read["bw_bytes"]
    except (ValueError, KeyError, IndexError, TypeError) as fault:
        what = f"{type(fault).__name__}: {fault}"
        raise FioError(f"fio's JSON isn't of a known form ({what})") from fault
    if error:
        raise FioError(f"fio stopped with error {error} ({os.strerror(error)})")
    if not nbytes or not rate:
        raise FioError("fio read nothing")
    # bw_bytes is exact where runtime is in whole milliseconds
    return FioResult(nbytes=nbytes, seconds=nbytes / rate, engine=engine)


def run(files: Sequence[str], timeout: float) -> FioResult:
    """Tries io_uring, which containers often forbid, then libaio, then plain reads. FioError with
    what each said; `timeout` is in seconds for each."""
    failures = []
    for engine in ("io_uring", "libaio", "psync"):
        try:
            done = subprocess.run(
                arguments(files, engine),
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
            if done.returncode == 0:
                return parse(done.stdout, engine)
            said = " ".join((done.stderr or done.stdout).split())[:200]
        except FioError as error:
            said = str(error)
        except subprocess.TimeoutExpired:
            raise FioError(f"fio ({engine}) didn't end within {timeout:g} s") from None
        except OSError as error:
            raise FioError(f"fio can't be run: {error}") from error
        failures.append(f"{engine}: {said}")
    raise FioError("; ".join(failures))
