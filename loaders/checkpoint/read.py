"""From a path to a checkpoint's manifest, with everything that is wrong with it.

`examine` reports, `open_checkpoint` refuses. Only headers and small JSON files are read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, get_args

from loaders.checkpoint import hf_cache
from loaders.checkpoint.folder import Asked, Found, read_folder, read_single
from loaders.checkpoint.manifest import (
    Checkpoint,
    CheckpointError,
    Problem,
    UnreadableError,
)
from loaders.checkpoint.regular import kind
from loaders.checkpoint.text import shown
from loaders.store.address import is_address, masked

_MOST_OF_A_KIND: Final = 20


def open_checkpoint(
    path: str | os.PathLike[str], *, format: Asked = "auto", origin: str | None = None
) -> Checkpoint:
    """The manifest of a sound checkpoint. CheckpointError with every fault if it has any;
    NoWeightsError and UnreadableError as `examine`."""
    checkpoint = examine(path, format=format, origin=origin)
    if checkpoint.errors:
        raise CheckpointError(checkpoint.origin, checkpoint.errors)
    return checkpoint


def examine(
    path: str | os.PathLike[str],
    *,
    format: Asked = "auto",
    verify_blobs: bool = False,
    origin: str | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> Checkpoint:
    """The manifest of what lies at `path`, faults in `problems`, errors before warnings.

    `path` is a folder, a weight file, an index file (its folder is meant), a repository folder of
    the Hugging Face cache, or an address (s3://, https://, hf://, ...: see checkpoint.remote).
    `format` "auto" takes the first of *.safetensors, *.bin, *.pt, and an npcache where there is
    nothing else. With `verify_blobs` every file is read whole and
    compared with the checksum that its blob's name promises, `on_bytes` being told the progress.
    `origin` is what the user named it by, if not by this path.

    Raises NoWeightsError if there are no weights (of that format), UnreadableError if the path is
    absent, not permitted, or no path at all; ValueError for an unknown format.
    """
    if format not in get_args(Asked):
        raise ValueError(f"format must be one of {', '.join(get_args(Asked))}, got {format!r}")
    if is_address(os.fspath(path)):
        found = _at_address(os.fspath(path), format, verify_blobs)
        origin = masked(origin if origin is not None else os.fspath(path))
    else:
        found = _found(local_path(path), format)
    problems = list(found.problems)
    if verify_blobs:
        problems += hf_cache.verify(found.items, found.root, on_bytes)
    return Checkpoint(
        root=found.root,
        origin=origin if origin is not None else str(path),
        format=found.format,
        files=found.files,
        tensors=found.tensors,
        config=found.config,
        ignored=found.ignored,
        problems=tuple(_ordered(problems)),
        facts=found.facts,
    )


def _at_address(address: str, format: Asked, verify_blobs: bool) -> Found:
    if verify_blobs:
        raise UnreadableError(
            f"{shown(masked(address))}: checksums are compared in local folders only (the names of "
            "blobs in a cache tell them); download it first"
        )
    from loaders.checkpoint.remote import read_address

    return read_address(address, format)


def _found(place: str, format: Asked) -> Found:
    mode = _mode(place)
    if stat.S_ISDIR(mode):
        return read_folder(hf_cache.snapshot_folder(place), format)
    if not stat.S_ISREG(mode):
        raise UnreadableError(
            f"{shown(place)}: expected a folder or a file, found {kind(mode)}; nothing was opened"
        )
    if place.endswith(".json") and ".index." in Path(place).name:
        return read_folder(str(Path(place).parent), format)
    return read_single(place, format)


def local_path(path: str | os.PathLike[str]) -> str:
    """`path` made absolute, `~` expanded, links kept. UnreadableError for what is no local path:
    an address (s3://...), an empty text, a zero byte."""
    text = os.fspath(path)
    if "://" in text:
        raise UnreadableError(
            f"{shown(masked(text))}: expected a local folder or file, found an address"
        )
    if not text or "\0" in text:
        raise UnreadableError(f"{shown(text)!r}: not a path")
    # Not pathlib's: expanduser() raises for an unknown ~user, resolve() follows the links.
    return os.path.abspath(os.path.expanduser(text))  # noqa: PTH100, PTH111


def _mode(place: str) -> int:
    try:
        return Path(place).stat().st_mode
    except FileNotFoundError as error:
        if Path(place).is_symlink():
            target = shown(Path(place).readlink())
            text = f"blob missing: {target} (the link leads nowhere); download it again"
            raise UnreadableError(f"{shown(place)}: {text}") from error
        raise UnreadableError(
            f"{shown(place)}: no such file or folder; give a checkpoint's folder or file"
        ) from error
    except OSError as error:
        raise UnreadableError(f"{shown(place)}: {error.strerror or error}") from error


def _ordered(problems: Sequence[Problem]) -> list[Problem]:
    """Errors first, and at most 20 of a kind with one more that counts the rest: a header cut off
    at the right place has a fault in every tensor."""
    kinds: dict[tuple[str, str], list[Problem]] = {}
    for problem in sorted(problems, key=lambda problem: problem.severity):
        kinds.setdefault((problem.severity, problem.code), []).append(problem)
    shortened: list[Problem] = []
    for same in kinds.values():
        shortened += same[:_MOST_OF_A_KIND]
        rest = len(same) - _MOST_OF_A_KIND
        if rest > 0:
            message = f"and {rest:,} more problems of the kind {same[0].code}"
            shortened.append(replace(same[-1], file=None, tensor=None, message=message))
    return shortened
