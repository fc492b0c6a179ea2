"""`make` on a machine where nothing is prepared: what is missing is named, by package."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def python_that(tmp_path: Path, refuses: str) -> Path:
    """A python whose `-c` fails when the code has that word in it."""
    path = tmp_path / "python"
    path.write_text(
        f'#!/bin/sh\ncase "$*" in *"{refuses}"*) exit 1;; esac\nexec {sys.executable} "$@"\n'
    )
    path.chmod(0o755)
    return path


def make(tmp_path: Path, python: Path) -> subprocess.CompletedProcess[str]:
    venv = tmp_path / "venv"
    return subprocess.run(
        ["make", f"{venv}/.pip", f"PYTHON={python}", f"VENV={venv}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("refuses", "said"),
    [
        ("ensurepip", f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"),
        ("version_info <", "needs Python 3.11"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, refuses: str, said: str) -> None:
    done = make(tmp_path, python_that(tmp_path, refuses))
    assert done.returncode != 0
    assert said in done.stdout
    assert not (tmp_path / "venv").exists()
    assert "Traceback" not in done.stdout + done.stderr


def test_benches_need_no_package_of_the_tests() -> None:
    """`make bench` installs only what measuring needs, and pytest reads tests/conftest.py then,
    too: at its top it may import nothing but Python's own modules."""
    top = ast.parse((ROOT / "tests/conftest.py").read_text()).body
    names = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in top if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names
