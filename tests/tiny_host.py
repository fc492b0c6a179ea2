"""Fake trees of /proc and /sys for the tests of host facts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FIXTURES = Path(__file__).parent / "fixtures" / "host"


def tree(root: Path, files: Mapping[str, str]) -> Path:
    """Writes `files` (relative path -> content) below `root` and returns it."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return root


def fixture(name: str) -> str:
    return (FIXTURES / name).read_text(encoding="utf-8")
