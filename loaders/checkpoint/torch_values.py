"""What stands for the things that a torch.save pickle makes, while no tensor is read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pickletools import opcodes

from loaders.checkpoint.dtypes import BY_NAME


def width(dtype: str) -> int | None:
    """Bytes of an element, None for a dtype that is no plain array (quantised, bits ...)."""
    row = BY_NAME.get(dtype)
    return None if row is None else row.itemsize


class RefusedError(Exception):
    """The pickle is not read on: a problem's code and its sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Global:
    """A name that the pickle mentions. Nothing is imported for it."""

    path: str


@dataclass(frozen=True, slots=True, eq=False)
class Opaque:
    """Something that holds no weights: a device, a set, a counter, an RNG's bytes."""

    kind: str


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Storage:
    """A run of elements outside the pickle. `numel` counts `dtype` elements, bytes where that is
    None (untyped); `first` is where a view of it begins (legacy files only)."""

    key: str
    dtype: str | None
    numel: int
    first: int = 0
    legacy: bool = False


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StoredTensor:
    """A tensor as the pickle describes it. `offset` and `stride` count elements. `odd` says what
    it is where its storage can't be taken as it is (sparse, quantised, meta ...); its own storages
    are then in `parts`."""

    dtype: str = ""
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0
    storage: Storage | None = None
    odd: str | None = None
    parts: tuple[StoredTensor, ...] = ()
    lazy: bool = False  # a conjugate or negative view: the stored bytes are not the values

    @property
    def nbytes(self) -> int:
        own = math.prod(self.shape) * (width(self.dtype) or 1) if self.storage else 0
        return own + sum(part.nbytes for part in self.parts)

    @property
    def contiguous(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != expected:
                return math.prod(self.shape) == 0
            expected *= size
        return True


def dict_key(key: object) -> object:
    """The same, if it may be a dict's key; RefusedError if not. Tuples only flat: the hash of a
    nested one can take forever or overflow the C stack."""
    atoms = key if isinstance(key, tuple) else (key,)
    if len(atoms) > 16 or not all(
        atom is None or isinstance(atom, str | int | float) for atom in atoms
    ):
        raise RefusedError(
            "unsupported-pickle",
            f"a dict in the pickle has a key of type {type(key).__name__}, no name or number",
        )
    if any(isinstance(atom, int) and not -(2**63) <= atom < 2**63 for atom in atoms):
        raise RefusedError("unsupported-pickle", "a dict in the pickle has a key beyond 64 bits")
    return key


def unsupported(code: bytes) -> str:
    """The sentence about a byte that the machine has no instruction for."""
    known = next((op for op in opcodes if op.code == code.decode("latin-1")), None)
    if known is None:
        return f"byte {code!r} is no pickle instruction: the file is damaged or no pickle"
    return (
        f"the pickle uses {known.name} (pickle protocol {known.proto}), which "
        "torch.load(weights_only=True) refuses: save again with torch.save's default protocol (2)"
    )
