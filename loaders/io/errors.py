"""What can go wrong while a checkpoint is being read. Each text says where, what was expected,
what was found and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from safetensors import SafetensorError


class LoadError(Exception):
    """A file or a tensor can't be loaded as the manifest states it."""


class TruncatedError(LoadError):
    """A file ends before the bytes that its manifest promises: it was cut off or replaced since it
    was examined. `expected` and `found` are file sizes in bytes, at least and actually."""

    def __init__(self, path: str, *, expected: int, found: int) -> None:
        self.path, self.expected, self.found = path, expected, found
        super().__init__(
            f"{path}: expected at least {expected} bytes, found {found}; the file was cut off or "
            "changed since it was examined: copy it again, then `coldload check` it"
        )


_FROM_LIBRARIES = (
    SafetensorError,
    OSError,
    MemoryError,
    RuntimeError,
    ValueError,
    KeyError,
    AttributeError,
)


@contextmanager
def naming(path: str, tensor: str | None = None) -> Iterator[None]:
    """Turns what a library raises about a file into a LoadError that names it. Libraries say
    "incomplete metadata" or "Cannot allocate memory" without saying of which of 160 files."""
    try:
        yield
    except _FROM_LIBRARIES as error:
        where = path if tensor is None else f"{path}: tensor {tensor!r}"
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
        advice = "`coldload check` says what is wrong with it"
        if isinstance(error, MemoryError):
            advice = "see `ulimit -v` and the memory limits that `coldload host` shows"
        raise LoadError(f"{where}: {text}; {advice}") from error
