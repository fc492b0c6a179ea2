"""The manifest: every file and tensor of a checkpoint, known from headers and index alone.

All loaders and all benches work from these values; none of them parses, guesses or globs by
itself. Offsets and sizes are bytes. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Format = Literal["safetensors", "pt", "npcache", "tensorizer", "snapshot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFile:
    """One file that holds weights. `path` is where it can be opened, links resolved by the system;
    `size` is that of the link's target."""

    name: str
    path: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor as its file states it.

    `dtype` is the name torch uses ("bfloat16", "float8_e4m3fn", ...), also where the installed
    torch lacks it. `offset` counts from the start of the file to the first byte of the tensor's
    contiguous little-endian data; it is None where the data is not one contiguous run (a strided
    view in a pickle). `storage` names what tensors that share memory have in common, else None;
    `storage_nbytes` is the size of that memory, which may be larger than all its tensors together.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    offset: int | None
    nbytes: int
    storage: str | None = None
    storage_nbytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """A file in the folder that is not read, and why."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something wrong in a checkpoint: a stable `code`, where, and one sentence that says what was
    expected, what was found and what to do. A warning doesn't stop a measurement."""

    code: str
    message: str
    file: str | None = None
    tensor: str | None = None
    severity: Literal["error", "warning"] = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint as it lies on disk. `root` is its folder, `origin` what the user named it by.

    `files` are in natural order (shard 2 before shard 10), `tensors` by file and then by offset.
    `facts` is what a snapshot says about itself (loaders.snapshot.format, all but its parameters).
    """

    root: str
    origin: str
    format: Format
    files: tuple[WeightFile, ...]
    tensors: tuple[TensorSpec, ...]
    config: Mapping[str, Any] | None = None
    ignored: tuple[Ignored, ...] = ()
    problems: tuple[Problem, ...] = field(default=())
    facts: Mapping[str, Any] | None = None

    @property
    def file_bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors; those that share a storage count each for itself."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def storage_bytes(self) -> int:
        """Bytes of the memory that the tensors lie in, each storage once: less than `tensor_bytes`
        where tensors are tied, more where a small view was saved with its large storage."""
        own = sum(tensor.nbytes for tensor in self.tensors if tensor.storage is None)
        shared = {
            (tensor.file, tensor.storage): tensor.storage_nbytes or tensor.nbytes
            for tensor in self.tensors
            if tensor.storage is not None
        }
        return own + sum(shared.values())

    @property
    def dtype_bytes(self) -> dict[str, int]:
        """Bytes by dtype, the largest first."""
        totals: dict[str, int] = {}
        for tensor in self.tensors:
            totals[tensor.dtype] = totals.get(tensor.dtype, 0) + tensor.nbytes
        return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))

    @property
    def errors(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.severity == "error")

    def file(self, name: str) -> WeightFile:
        return next(file for file in self.files if file.name == name)

    def tensors_of(self, file: str) -> tuple[TensorSpec, ...]:
        return tuple(tensor for tensor in self.tensors if tensor.file == file)


class CheckpointError(Exception):
    """The checkpoint can't be measured; the text names each fault and what to do."""

    def __init__(self, origin: str, problems: tuple[Problem, ...]) -> None:
        self.origin = origin
        self.problems = problems
        shown = "\n".join(f"  {problem.code}: {problem.message}" for problem in problems[:10])
        more = f"\n  and {len(problems) - 10} more" if len(problems) > 10 else ""
        super().__init__(f"{origin}: {len(problems)} fault(s) in the checkpoint\n{shown}{more}")


class NoWeightsError(Exception):
    """There is no checkpoint here; the text lists what is there and which loader would read it."""


class UnreadableError(Exception):
    """The path can't be read at all: absent, no permission, not a checkpoint's kind of address."""
