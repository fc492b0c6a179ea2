"""Reads the pickle of a torch.save file without running anything in it.

A pickle is a program; `pickle.load` runs whatever it names. This is a machine of its own for the
instructions and names that `torch.load(weights_only=True)` accepts (torch 2.13,
`torch/_weights_only_unpickler.py`), with descriptions in the place of tensors: no storage is read,
torch is not imported. What torch would refuse is refused here, so that a fault is found before a
clock runs. Time and memory are bounded by the pickle's own length.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable
from pickle import decode_long
from typing import BinaryIO

from loaders.checkpoint.torch_globals import CALLS, lookup, stored_dtype
from loaders.checkpoint.torch_values import (
    Global,
    Opaque,
    RefusedError,
    Storage,
    dict_key,
    unsupported,
)

MAX_INSTRUCTIONS = 12_000_000  # some 350 000 tensors; published files have thousands
MAX_COPIED = 2_000_000  # items of dicts that are built from a list (Python 2)
MAX_TEXT = 256 << 20  # bytes of all strings together: nothing longer belongs in a state dict


def unpickle(stream: BinaryIO) -> tuple[object, dict[str, Storage]]:
    """The object that one pickle describes, read from the stream's position on, and the storages
    that it refers to, by key.

    Tensors come back as `StoredTensor`, other things as plain dicts, lists, strings and numbers or
    as `Opaque`. The stream is left behind the pickle. Raises RefusedError: a code and a sentence.
    """
    start = stream.tell()
    machine = _Machine(stream)
    try:
        return machine.run(), machine.storages
    except EOFError:
        raise RefusedError(
            "truncated-pickle",
            f"the pickle that begins at byte {start} ends in the middle (at byte {stream.tell()}); "
            "the file is cut off or was not written to the end: fetch it again",
        ) from None
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, struct.error) as error:
        raise RefusedError(
            "corrupt-pickle",
            f"the pickle that begins at byte {start} makes no sense near byte {stream.tell()} "
            f"({type(error).__name__}); the file is damaged: fetch it again",
        ) from error


class _Machine:
    """The pickle's stack machine. One method for each instruction, named as in `pickletools`."""

    def __init__(self, stream: BinaryIO) -> None:
        self.read_some = stream.read
        self.readline = stream.readline
        self.stack: list[object] = []
        self.below: list[list[object]] = []  # the stacks under each MARK
        self.memo: dict[int, object] = {}
        self.storages: dict[str, Storage] = {}
        self.text = 0
        self.copied = 0

    def run(self) -> object:
        methods = _METHODS
        for _ in range(MAX_INSTRUCTIONS):
            code = self.read(1)
            if code == b".":
                return self.stack.pop()
            method = methods.get(code)
            if method is None:
                raise RefusedError("unsupported-pickle", unsupported(code))
            method(self)
        raise RefusedError(
            "pickle-too-large",
            f"the pickle has more than {MAX_INSTRUCTIONS} instructions, which no state dict has",
        )

    def read(self, count: int) -> bytes:
        data = self.read_some(count)
        if len(data) != count:
            raise EOFError
        return data

    def read_text(self, count: int) -> bytes:
        self.text += count
        if self.text > MAX_TEXT:
            raise RefusedError(
                "pickle-too-large",
                f"strings of more than {MAX_TEXT >> 20} MiB in the pickle; a state dict has names",
            )
        return self.read(count)

    def number(self, form: str) -> int:
        value: int = struct.unpack(form, self.read(struct.calcsize(form)))[0]
        return value

    def pop_mark(self) -> list[object]:
        items = self.stack
        self.stack = self.below.pop()
        return items

    def mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def proto(self) -> None:
        self.read(1)

    def global_(self) -> None:
        lines = [self.readline(4096) for _ in range(2)]
        if not all(line.endswith(b"\n") for line in lines):
            raise EOFError
        module, name = (line[:-1].decode("utf-8") for line in lines)
        self.stack.append(lookup(module, name))

    def reduce(self) -> None:
        arguments = self.stack.pop()
        function = self.stack.pop()
        if not (isinstance(function, Global) and isinstance(arguments, tuple)):
            raise RefusedError("unsafe-pickle", f"the pickle calls a {type(function).__name__}")
        if function.path == "collections.OrderedDict":
            self.stack.append(self.ordered_dict(arguments))
            return
        call = CALLS.get(function.path)
        self.stack.append(Opaque(function.path) if call is None else call(*arguments))

    def ordered_dict(self, arguments: tuple[object, ...]) -> OrderedDict[object, object]:
        """Python 2 pickled the items as an argument; counted, because one list can be copied by
        every instruction that follows."""
        made: OrderedDict[object, object] = OrderedDict()
        pairs = arguments[0] if arguments else ()
        if not isinstance(pairs, list | tuple):
            raise TypeError("items of an OrderedDict")
        self.copied += len(pairs)
        if self.copied > MAX_COPIED:
            raise RefusedError("pickle-too-large", "the pickle copies one list over and over")
        for key, value in pairs:
            made[dict_key(key)] = value
        return made

    def build(self) -> None:
        """Attributes (a state dict's `_metadata`) are no weights; they are dropped."""
        self.stack.pop()
        if not isinstance(self.stack[-1], OrderedDict | Opaque):
            raise RefusedError(
                "unsafe-pickle",
                f"the pickle sets the state of a {type(self.stack[-1]).__name__}, "
                "which torch.load(weights_only=True) refuses",
            )

    def append(self) -> None:
        item = self.stack.pop()
        self.target_list().append(item)

    def appends(self) -> None:
        items = self.pop_mark()
        self.target_list().extend(items)

    def target_list(self) -> list[object]:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise TypeError("append to something that is no list")
        return target

    def setitem(self) -> None:
        value = self.stack.pop()
        key = self.stack.pop()
        self.target_dict()[dict_key(key)] = value

    def setitems(self) -> None:
        items = self.pop_mark()
        target = self.target_dict()
        for at in range(0, len(items), 2):
            target[dict_key(items[at])] = items[at + 1]

    def target_dict(self) -> dict[object, object]:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise TypeError("item of something that is no dict")
        return target

    def top(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def get(self, form: str) -> None:
        self.stack.append(self.memo[self.number(form)])

    def put(self, form: str) -> None:
        self.memo[self.number(form)] = self.stack[-1]

    def binpersid(self) -> None:
        """A reference to bytes outside the pickle: ("storage", type, key, device, count) and, in
        legacy files, a view (key, first element, count) or None. The device is dropped: everything
        is mapped to the CPU."""
        pid = self.stack.pop()
        if not (isinstance(pid, tuple) and len(pid) in (5, 6) and pid[0] == "storage"):
            what = pid[0] if isinstance(pid, tuple) and pid and isinstance(pid[0], str) else "?"
            raise RefusedError(
                "unsafe-pickle",
                f"the pickle refers to a saved {what[:40]!r}, no storage (a whole nn.Module?); "
                "torch.load(weights_only=True) refuses it: save model.state_dict() instead",
            )
        _, kind, key, _, numel, *rest = pid
        if not (isinstance(kind, Global) and isinstance(key, str) and type(numel) is int):
            raise TypeError("storage reference")
        first = rest[0][1] if rest and rest[0] is not None else 0
        if type(first) is not int or first < 0 or numel < 0:
            raise ValueError("storage reference")
        storage = Storage(
            key=key, dtype=stored_dtype(kind), numel=numel, first=first, legacy=bool(rest)
        )
        known = self.storages.setdefault(key, storage)
        if (known.dtype or "uint8", known.numel) != (storage.dtype or "uint8", numel):
            raise RefusedError(
                "corrupt-pickle", f"storage {key[:40]!r} is described twice and differently"
            )
        self.stack.append(storage)


def _push(make: Callable[[_Machine], object]) -> Callable[[_Machine], None]:
    def push(machine: _Machine) -> None:
        made = make(machine)  # first: it may put another stack in place
        machine.stack.append(made)

    return push


_METHODS: dict[bytes, Callable[[_Machine], None]] = {
    b"\x80": _Machine.proto,
    b"c": _Machine.global_,
    b"R": _Machine.reduce,
    b"\x81": _Machine.reduce,  # NEWOBJ: cls.__new__(cls, *args)
    b"b": _Machine.build,
    b"(": _Machine.mark,
    b"a": _Machine.append,
    b"e": _Machine.appends,
    b"s": _Machine.setitem,
    b"u": _Machine.setitems,
    b"Q": _Machine.binpersid,
    b"\x85": lambda machine: machine.top(1),
    b"\x86": lambda machine: machine.top(2),
    b"\x87": lambda machine: machine.top(3),
    b"h": lambda machine: machine.get("B"),
    b"j": lambda machine: machine.get("<I"),
    b"q": lambda machine: machine.put("B"),
    b"r": lambda machine: machine.put("<I"),
    b"t": _push(lambda machine: tuple(machine.pop_mark())),
    b"N": _push(lambda machine: None),
    b"\x88": _push(lambda machine: True),
    b"\x89": _push(lambda machine: False),
    b")": _push(lambda machine: ()),
    b"]": _push(lambda machine: []),
    b"}": _push(lambda machine: {}),
    b"\x8f": _push(lambda machine: Opaque("set")),
    b"J": _push(lambda machine: machine.number("<i")),
    b"K": _push(lambda machine: machine.number("B")),
    b"M": _push(lambda machine: machine.number("<H")),
    b"\x8a": _push(lambda machine: decode_long(machine.read(machine.number("B")))),
    b"G": _push(lambda machine: struct.unpack(">d", machine.read(8))[0]),
    b"X": _push(lambda m: m.read_text(m.number("<I")).decode("utf-8", "surrogatepass")),
    b"U": _push(lambda m: m.read_text(m.number("B")).decode("utf-8")),
}
