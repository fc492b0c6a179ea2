"""The contract between a loader and whoever drives it.

A loader turns a `Checkpoint` into an iterator of `(name, tensor)`, the shape that inference
engines use. It opens its files while it is iterated, not before: the caller's clock runs then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import ClassVar, Literal, Protocol

import torch

from loaders.checkpoint.manifest import Checkpoint

Ownership = Literal["mapped", "borrowed", "owned", "device"]
Place = Literal["file", "address"]
OptionValue = bool | int | str
Tunable = Literal["block_mib", "pages", "readers"]
Rows = tuple[str, int, torch.Tensor]
"""A tensor's name, the index of the first of its rows that these are, and these."""


class Stamp(Protocol):
    """The caller's stopwatch. `with stamp("open"):` counts the block as opening (headers, views),
    `with stamp("allocate"):` as getting destination memory. What the iterator spends outside both
    is reading. To be used on the iterating thread only: stamps divide that thread's time."""

    def __call__(self, phase: Literal["open", "allocate"]) -> AbstractContextManager[None]: ...


class OptionError(ValueError):
    """An option that the loader doesn't have, or a value of the wrong type."""


class Loader(ABC):
    """One way to load weights. Subclass it, decorate it with `loaders.registry.register`.

    Class attributes:
        name: as on the command line.
        summary: one line for `coldload loaders`.
        formats: the checkpoint formats that it reads; empty means that it opens no file.
        ownership: the kind of memory its tensors lie in. `mapped`: pages of the file, read when
            touched. `borrowed`: valid only until the iterator is advanced, see below. `owned`:
            ordinary memory that stays until the tensor is dropped. `device`: an accelerator's
            memory.
        options: name -> default; the default's type is the option's type, strictly.
        tunable: options that may be set to what the storage was found to like (its best block
            size, kind of pages, number of readers) where the user didn't set them.
        variants: the option sets that a run without `--loader` measures.
        threaded: whether `threads` means anything to it.
        requires: modules that must be importable.
        place: where the files may lie: `file` for paths of this host, `address` for s3:// and such.
        synthetic: True if the tensors are made up: then only names, dtypes and shapes can be
            verified.

    The lifetime of a borrowed tensor: from the moment it is yielded until the next one is asked for
    (or the iterator is closed), its bytes are right and nobody else touches them. From then on the
    loader may read other bytes into that memory, at once and from other threads; the tensor stays
    safe to touch, but shows whatever is there. Whoever needs it longer copies it before advancing.
    A loader that says `owned` and reuses memory is caught: kept tensors are looked at once more
    after the load. One that says `borrowed` and overwrites too early is caught as well: a tensor is
    looked at twice before the iterator is advanced.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    formats: ClassVar[frozenset[str]]
    ownership: Ownership
    options: ClassVar[Mapping[str, OptionValue]] = {}
    variants: ClassVar[tuple[Mapping[str, OptionValue], ...]] = ({},)
    threaded: ClassVar[bool] = False
    requires: ClassVar[tuple[str, ...]] = ()
    place: ClassVar[Place] = "file"
    synthetic: ClassVar[bool] = False
    tunable: ClassVar[frozenset[Tunable]] = frozenset()

    def __init__(self, threads: int = 1, **given: OptionValue) -> None:
        """`given` are options that differ from the defaults; OptionError for an unknown one."""
        for key, value in given.items():
            if key not in self.options:
                known = ", ".join(sorted(self.options)) or "none"
                raise OptionError(f"{self.name} has no option {key!r} (it has: {known})")
            expected = type(self.options[key])
            if type(value) is not expected:
                raise OptionError(
                    f"{self.name}: {key} must be {expected.__name__}, "
                    f"got {type(value).__name__} ({value!r})"
                )
        if type(threads) is not int or threads < 1:
            raise OptionError(f"{self.name}: threads must be an int from 1 on, got {threads!r}")
        self.threads = threads
        self.settings: dict[str, OptionValue] = {**self.options, **given}
        # What a reader of the result must know and can't see in the options, appended while
        # loading: "mmap refused: ...; read without". The caller stores them with the sample.
        self.notes: list[str] = []
        # What the loader counted while loading, and only it can know ("requests", "retries"); the
        # caller stores them with the sample. Empty where there is nothing of the kind.
        self.counts: dict[str, int] = {}
        # Set by whoever measures: is shown the memory that tensors will lie in ("ring", "owned")
        # before anything is read into it, to look at its pages once the clock has stopped.
        self.on_memory: Callable[[str, memoryview], None] | None = None

    def require_positive(self, *options: str) -> None:
        """For `__init__`: OptionError unless each of these number options is at least 1."""
        for key in options:
            if int(self.settings[key]) < 1:
                found = self.settings[key]
                raise OptionError(f"{self.name}: {key} must be at least 1, got {found}")

    def require_not_negative(self, option: str) -> None:
        """For `__init__`: OptionError unless this number option is at least 0."""
        if int(self.settings[option]) < 0:
            found = self.settings[option]
            raise OptionError(f"{self.name}: {option} must be at least 0, got {found}")

    def require_one_of(self, option: str, *choices: OptionValue) -> None:
        """For `__init__`: OptionError unless the option has one of these values."""
        found = self.settings[option]
        if found not in choices:
            known = " or ".join(map(str, choices))
            raise OptionError(f"{self.name}: {option} must be {known}, got {found!r}")

    def note(self, text: str) -> None:
        """Adds to `notes`, each text once."""
        if text not in self.notes:
            self.notes.append(text)

    def show_memory(self, what: str, memory: memoryview) -> None:
        """For loaders that get their memory themselves: see `on_memory`."""
        if self.on_memory is not None:
            self.on_memory(what, memory)

    def memory_bytes(self, checkpoint: Checkpoint) -> int:
        """Bytes of ordinary memory needed while every yielded tensor is kept, for the check that is
        made before a run. Mapped pages don't count: the kernel takes them back."""
        return checkpoint.tensor_bytes if self.ownership == "owned" else 0

    def refuses(self, checkpoint: Checkpoint) -> str | None:
        """Why it can't load this checkpoint although it reads the format (a dtype that its library
        doesn't know), so that this is a skip before a run and no failure in it. None if it can as
        far as the manifest tells. Opens no file."""
        return None

    @classmethod
    def unusable(cls) -> str | None:
        """Why it can't run on this host although the modules of `requires` are there: no such
        device, a library that is too old. None if it can. Starts no device: it is asked in the
        process that the measuring ones are forked from."""
        return None

    @classmethod
    def tunable_with(cls, options: Mapping[str, OptionValue]) -> frozenset[Tunable]:
        """Those of `tunable` that hold with these options, as far as the user gave any."""
        return cls.tunable

    @property
    def in_rows(self) -> bool:
        """Whether it is to be driven by `load_rows`: it was asked for rows, and can give them."""
        return False

    def load_rows(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[Rows]:
        """As `load`, but a large tensor comes in parts, each a run of rows (indices of its first
        dimension) that lies contiguous and begins at a multiple of 8 bytes of it. For consumers
        that copy, convert or send rows as they come: memory stays as small as the parts. In any
        order: parts of other tensors may come before a tensor's last one."""
        for name, tensor in self.load(checkpoint, stamp):
            yield name, 0, tensor

    @abstractmethod
    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields each tensor of the checkpoint once, in any order, contiguous, on the CPU, with the
        dtype and shape of the manifest."""
