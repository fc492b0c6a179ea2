"""Hugging Face's cache layout, as it lies on disk. No network and no huggingface_hub.

    models--org--name/refs/main               the commit that "main" was when it was last asked
    models--org--name/snapshots/<commit>/...  links to ../../blobs/<digest>
    models--org--name/blobs/<digest>          the bytes; sha256 for large files, else git's sha1

Problem codes: checksum-mismatch, checksum-unknown, unreadable-file.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from loaders.checkpoint.listing import Item
from loaders.checkpoint.manifest import NoWeightsError, Problem, UnreadableError
from loaders.checkpoint.regular import opened, read_at
from loaders.checkpoint.text import count, listed, shown

_SHA256 = re.compile(r"^[0-9a-f]{64}$")
_SHA1 = re.compile(r"^[0-9a-f]{40}$")
_REPO = re.compile(r"^models--(.+)$")
_BLOCK: Final = 8 << 20


def snapshot_folder(folder: str) -> str:
    """The folder that holds the files: `folder` itself, or for a cache repository the snapshot
    that refs/main names (the only one where there is no such ref). UnreadableError if a ref names
    a snapshot that isn't there, or several snapshots leave the choice open."""
    here = Path(folder)
    repo = here.parent if here.name == "snapshots" else here
    snapshots = repo / "snapshots"
    is_cache = "--" in repo.name or (repo / "blobs").is_dir() or (repo / "refs").is_dir()
    if not (is_cache and snapshots.is_dir()):
        return folder
    try:
        there = sorted(entry.name for entry in snapshots.iterdir() if entry.is_dir())
        ref = repo / "refs" / "main"
        commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else None
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableError(f"{shown(folder)}: the cache can't be read: {error}") from error
    if commit is not None and commit in there:
        return str(snapshots / commit)
    if not there:
        raise NoWeightsError(
            f"{shown(folder)}: a Hugging Face cache folder without any snapshot: nothing was "
            "downloaded to the end; download the model again"
        )
    if len(there) == 1 and commit is None:
        return str(snapshots / there[0])
    said = "there is no refs/main" if commit is None else f"refs/main names {shown(commit)}"
    raise UnreadableError(
        f"{shown(folder)}: {said}, and the snapshots here are {listed(there)}; "
        "give the path of one of them"
    )


def repo_id(path: str) -> str | None:
    """`org/name` for the cache's folder of a repository, its snapshots, one of them, or a file in
    one (links to such a folder too); None for what lies elsewhere."""
    place = Path(os.path.abspath(path))  # noqa: PTH100 - not resolve(): a file is a link to a blob
    for above in dict.fromkeys([place, Path(os.path.realpath(place))]):
        for depth, folder in enumerate([above, *above.parents][:4]):
            found = _REPO.match(folder.name)
            inside = above.relative_to(folder).parts
            if found is not None and (depth == 0 or inside[0] in ("snapshots", "blobs")):
                return found[1].replace("--", "/", 1)
    return None


def expected_digest(item: Item, folder: str) -> tuple[str, str] | None:
    """("sha256" or "git-sha1", hex digest) that the file should have, or None if nothing tells.

    A blob's own name tells; so does the record that a download to a local folder leaves in
    .cache/huggingface/download/.
    """
    real = Path(os.path.realpath(item.path))
    if _SHA256.match(real.name):
        return "sha256", real.name
    if _SHA1.match(real.name) and real.parent.name == "blobs":
        return "git-sha1", real.name
    record = Path(folder, ".cache", "huggingface", "download", f"{item.name}.metadata")
    try:
        with opened(str(record)) as (fd, _):
            lines = read_at(fd, 0, 4096).decode("ascii", "replace").splitlines()
    except OSError:
        return None  # no such record: the file came another way
    etag = lines[1].strip() if len(lines) > 1 else ""
    if _SHA256.match(etag):
        return "sha256", etag
    return ("git-sha1", etag) if _SHA1.match(etag) else None


def verify(
    items: Sequence[Item], folder: str, on_bytes: Callable[[int], None] | None = None
) -> list[Problem]:
    """Reads every file whole and compares its digest with what its blob's name promises.
    `on_bytes` is told how many bytes were read, block by block."""
    problems = []
    unknown = []
    for item in items:
        expected = expected_digest(item, folder)
        if expected is None:
            unknown.append(item.name)
            continue
        where = shown(item.name)
        try:
            found = _digest(item.path, expected[0], on_bytes)
        except OSError as error:
            text = f"{where}: can't be read for its checksum: {error.strerror or error}"
            problems.append(Problem(code="unreadable-file", file=item.name, message=text))
            continue
        if found != expected[1]:
            text = (
                f"{where}: expected {expected[0]} {expected[1]}, found {found} over "
                f"{count(item.size, 'byte')}: the file was changed after its download, or is "
                "damaged; download it again"
            )
            problems.append(Problem(code="checksum-mismatch", file=item.name, message=text))
    if unknown:
        text = (
            f"no checksum is known for {count(len(unknown), 'file')} ({listed(unknown)}): only "
            "downloads from the Hub carry one"
        )
        problems.append(Problem(code="checksum-unknown", message=text, severity="warning"))
    return problems


def _digest(path: str, kind: str, on_bytes: Callable[[int], None] | None) -> str:
    with opened(path) as (fd, size):
        state = hashlib.sha256()
        if kind == "git-sha1":
            state = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        offset = 0
        while block := os.pread(fd, _BLOCK, offset):
            state.update(block)
            offset += len(block)
            if on_bytes is not None:
                on_bytes(len(block))
    return state.hexdigest()
