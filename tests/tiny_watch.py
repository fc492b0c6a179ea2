"""Engines that are scripts, and the command that watches them, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ENGINES = Path(__file__).parent / "engines"
PATIENCE = 60.0
"""Seconds until a test that waits for something gives up."""


def engine(name: str, *args: object) -> list[str]:
    return [sys.executable, str(ENGINES / f"{name}.py"), *map(str, args)]


def watching(*args: object) -> list[str]:
    run = "from bench.cli import main; main()"
    return [sys.executable, "-c", run, "watch", *map(str, args)]


def begun(*args: object, **options: Any) -> subprocess.Popen[bytes]:
    """`coldload watch` with these arguments, running."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(watching(*args), cwd=ENGINES.parent.parent, **options)


def watched(*args: object, code: int | None = 0) -> subprocess.CompletedProcess[bytes]:
    """`coldload watch` with these arguments, to its end."""
    process = begun(*args)
    out, err = process.communicate(timeout=PATIENCE)
    assert code is None or process.returncode == code, err.decode("utf-8", "replace")
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def documented(tmp_path: Path, *args: object, code: int | None = 0) -> dict[str, Any]:
    """The document that it wrote."""
    record = tmp_path / "record.json"
    watched("--record", record, *args, code=code)
    return dict(json.loads(record.read_text()))


def until(true: Callable[[], bool], what: str) -> None:
    """Waits for something that will happen, and fails only if it doesn't."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether that process runs (a zombie doesn't)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def pids_in(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def interrupted(process: subprocess.Popen[bytes], number: int = signal.SIGINT) -> tuple[str, str]:
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=PATIENCE)
    return out.decode("utf-8", "replace"), err.decode("utf-8", "replace")


def line_of(process: subprocess.Popen[bytes], needle: bytes) -> bytes:
    """Reads its standard error up to the line with `needle`."""
    assert process.stderr is not None
    for line in process.stderr:
        if needle in line:
            return line
    raise AssertionError(f"{needle!r} never came; exit code {process.wait()}")
