"""What every adapter to another library needs: its version, and files that are still whole."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

from loaders.checkpoint.dtypes import BY_NAME
from loaders.checkpoint.manifest import Checkpoint
from loaders.io.errors import LoadError, TruncatedError


def older_than(distribution: str, needed: str) -> str | None:
    """A sentence if the installed distribution is older than `needed` ("0.17.1"), else None; also
    None if its version isn't known (a module without a distribution). Pre-releases count as the
    release they lead to."""
    try:
        found = version(distribution)
    except PackageNotFoundError:
        return None
    if _numbers(found) >= _numbers(needed):
        return None
    return f"needs {distribution} {needed} or newer, found {found}"


def _numbers(text: str) -> tuple[int, ...]:
    leading = re.match(r"\d+(\.\d+)*", text)
    numbers = [int(part) for part in leading[0].split(".")] if leading else []
    while numbers and numbers[-1] == 0:  # 1.0 is 1
        numbers.pop()
    return tuple(numbers)


def require_whole(checkpoint: Checkpoint) -> None:
    """TruncatedError for the first file that is shorter than its manifest says, OSError for one
    that is gone. Some libraries take fewer bytes than they asked for and leave the rest of a tensor
    as the memory was (tensorizer 2.12: readinto unchecked); others don't name the file."""
    for file in checkpoint.files:
        found = os.stat(file.path).st_size  # noqa: PTH116  the error names the path as we know it
        if found < file.size:
            raise TruncatedError(file.path, expected=file.size, found=found)


@contextmanager
def translated(library: str, where: str) -> Iterator[None]:
    """Turns whatever a library raises into a LoadError that says where and by which library. Peers
    raise bare `Exception`, and of some errors only a number."""
    try:
        yield
    except LoadError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise LoadError(f"{where}: {library} can't read it: {text}") from error


def unknown_code(checkpoint: Checkpoint, known: Collection[str], library: str) -> str | None:
    """The first tensor whose safetensors code the library doesn't know, as a sentence, or None. The
    library itself would say so only after opening, and not of which tensor."""
    for spec in checkpoint.tensors:
        row = BY_NAME.get(spec.dtype)
        if row is None or row.code not in known:
            return (
                f"{spec.file}: tensor {spec.name!r} is {spec.dtype}, which {library} doesn't know; "
                "safetensors-mmap and parallel may"
            )
    return None
