"""Reading the small files of /proc and /sys, where a missing one is an answer, not a fault."""

from __future__ import annotations

import os
import stat
from pathlib import Path

Root = str | os.PathLike[str]


def under(root: Root, path: str) -> Path:
    """The absolute `path` of the system, moved below `root` (a fake tree in tests)."""
    return Path(root) / path.lstrip("/")


def text(path: Path) -> str | None:
    """The content of `path` without surrounding white space; None where it can't be read.

    The kernel says "this device has no such thing" in many ways (ENOENT, EACCES, EINVAL, ENODEV,
    EIO), and all of them mean that the fact isn't known. Bytes that aren't UTF-8 survive as
    surrogates, as they do in Python's paths.
    """
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").strip()
    except OSError:
        return None


def word(path: Path) -> str | None:
    """As `text`, and None for an empty file too."""
    return text(path) or None


def number(path: Path) -> int | None:
    """The decimal number in `path`; None where there is none."""
    content = text(path)
    if content is None or not content.lstrip("-").isdecimal():
        return None
    return int(content)


def chosen(content: str | None) -> str | None:
    """The word in brackets of "always [madvise] never"; a single word stands for itself."""
    if not content:
        return None
    words = content.split()
    for candidate in words:
        if candidate.startswith("[") and candidate.endswith("]"):
            return candidate[1:-1]
    return words[0] if len(words) == 1 else None


def listed(directory: Path) -> list[str]:
    """The names in `directory`, sorted; empty where it can't be listed."""
    try:
        return sorted(entry.name for entry in directory.iterdir())
    except OSError:
        return []


def is_directory(path: Path) -> bool:
    """Whether `path` is a directory that can be looked at."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError:
        return False


def cpu_list(content: str) -> list[int]:
    """The numbers of a kernel CPU list such as "0-3,8,10-11"; ValueError if it isn't one."""
    cpus: list[int] = []
    for part in content.split(","):
        first, _, last = part.strip().partition("-")
        if not first:
            continue
        cpus.extend(range(int(first), int(last or first) + 1))
    return cpus
