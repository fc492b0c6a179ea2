"""fio, where it is installed: a stranger's word on what the storage gives, in the same passes."""

from __future__ import annotations

import json
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


def arguments(files: Sequence[str], engine: str) -> list[str]:
    """Direct sequential reads of whole files, 32 blocks of 4 MiB in flight (8 jobs where the engine
    has one at a time). fio wants colons in names escaped."""
    names = ":".join(name.replace(":", r"\:") for name in files)
    return [
        "fio",
        "--name=ceiling",
        "--readonly",
        "--rw=read",
        "--direct=1",
        "--bs=4M",
        f"--ioengine={engine}",
        "--iodepth=32",
        f"--filename={names}",
        "--file_service_type=sequential",
        "--output-format=json",
    ]


def parse(text: str, engine: str) -> FioResult:
    """From fio's JSON, which may follow warnings in plain text."""
    start = text.find("{")
    if start < 0:
        raise FioError(f"fio gave no JSON: {text.strip()[:200] or 'nothing'}")
    job = json.loads(text[start:])["jobs"][0]
    if job["error"]:
        raise FioError(f"fio stopped with error {job['error']}")
    read = job["read"]
    if not read["io_bytes"] or not read["runtime"]:
        raise FioError("fio read nothing")
    # bw_bytes is exact where runtime is in whole milliseconds
    return FioResult(
        nbytes=read["io_bytes"], seconds=read["io_bytes"] / read["bw_bytes"], engine=engine
    )


def run(files: Sequence[str], timeout: float) -> FioResult:
    """Tries io_uring, which containers often forbid, then libaio."""
    failures = []
    for engine in ("io_uring", "libaio", "psync"):
        done = subprocess.run(
            arguments(files, engine),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode == 0:
            return parse(done.stdout, engine)
        failures.append(f"{engine}: {(done.stderr or done.stdout).strip()[-150:]}")
    raise FioError("; ".join(failures))
