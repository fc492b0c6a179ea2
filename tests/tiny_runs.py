"""Runs of pytest as a user starts them: in a process of its own, in the project's root."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
TRIES = """
import contextlib, io, json, sys
import pytest
for args in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = pytest.main(args)
    print(json.dumps([int(code), said.getvalue()]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a command ended, and all that it printed."""

    code: int
    text: str


def environment(**more: str) -> dict[str, str]:
    """This one without what would colour or change a run."""
    kept = {k: v for k, v in os.environ.items() if k not in {"FORCE_COLOR", "PYTEST_ADDOPTS"}}
    return {**kept, "COLUMNS": "200", **more}


def command(
    args: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 120
) -> Done:
    done = subprocess.run(
        args,
        cwd=ROOT,
        env=environment(**(env or {})),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Done(code=done.returncode, text=done.stdout)


def run_pytest(*args: str | Path, env: Mapping[str, str] | None = None) -> Done:
    return command([*PYTEST, *map(str, args)], env=env)


def run_coldload(*args: str | Path) -> Done:
    start = "import sys; from bench.cli import main; sys.exit(main())"
    return command([sys.executable, "-c", start, *map(str, args)])


def tries(commands: Sequence[Sequence[str]], env: Mapping[str, str] | None = None) -> list[Done]:
    """Several pytest sessions, one after another in one process: for those that end early."""
    args = json.dumps([["-p", "no:cacheprovider", *each] for each in commands])
    done = command([sys.executable, "-c", TRIES, args], env=env)
    assert done.code == 0, done.text
    return [Done(code=code, text=text) for code, text in map(json.loads, done.text.splitlines())]


def records(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "records.jsonl").read_text().splitlines()]


def samples(run_dir: Path) -> list[dict[str, Any]]:
    """The last of each case in each pass: on a busy host some are thrown out and taken again."""
    found = [line for line in records(run_dir) if line["kind"] == "sample"]
    return list({(line["case"], line["pass"]): line for line in found}.values())


def processes_of(runner: int) -> list[int]:
    """The fork server of that runner and its children, as far as they still live."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # ended meanwhile
        if b"bench.measuring.forkserver" in words and str(runner).encode() in words:
            found.append(int(folder.name))
    return found


def wait_for(what: Any, seconds: float = 30) -> bool:
    """Whether `what()` came true before the deadline."""
    until = time.monotonic() + seconds
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def private_mount(script: str) -> list[str] | None:
    """A command that runs `script` (sh) where it may mount without anybody else seeing it; what
    follows becomes its arguments. None where that isn't allowed."""
    probe = ["unshare", "--mount", "true"]
    try:
        allowed = subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except OSError:
        return None
    return ["unshare", "--mount", "sh", "-ec", f'{script}\nexec "$@"', "sh"] if allowed else None
