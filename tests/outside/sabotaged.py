"""Loaders that are wrong, each in its own way, as an outside package would bring them.

Found through PYTHONPATH=tests/outside and the dist-info folder beside this file.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from loaders.checkpoint.manifest import Checkpoint, TensorSpec
from loaders.contract import Loader, Stamp
from loaders.io.tensors import by_file, tensor_over

Pairs = Iterator[tuple[str, torch.Tensor]]


class Honest(Loader):
    """Reads plainly. The others start from what it yields."""

    name = "honest"
    summary = "right"
    formats = frozenset({"safetensors"})
    ownership = "owned"
    loads = 0  # of this process: the first one is timed

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Pairs:
        Honest.loads += 1
        yield from self.sabotage(list(plain(checkpoint)), stamp)

    def sabotage(self, pairs: list[tuple[str, torch.Tensor]], stamp: Stamp) -> Pairs:
        yield from pairs

    @property
    def timed(self) -> bool:
        return Honest.loads == 1


def plain(checkpoint: Checkpoint) -> Pairs:
    for file, specs in by_file(checkpoint):
        with Path(file.path).open("rb") as opened:
            for spec in specs:
                yield spec.name, tensor_over(read(opened.fileno(), spec), 0, spec)


def read(fd: int, spec: TensorSpec) -> bytearray:
    return bytearray(os.pread(fd, spec.nbytes, spec.offset or 0))


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


# --- bytes


class Untouched(Honest):
    name = "untouched"

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Pairs:
        for spec in checkpoint.tensors:
            yield spec.name, torch.empty(spec.shape, dtype=getattr(torch, spec.dtype))


class Lazy(Honest):
    """Not wrong: it touches nothing itself, and must be made to pay for its faults."""

    name = "lazy"
    ownership = "mapped"

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Pairs:
        for file, specs in by_file(checkpoint):
            with Path(file.path).open("rb") as opened:
                mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
            for spec in specs:
                yield spec.name, tensor_over(memoryview(mapped), spec.offset or 0, spec)


class WrongByte(Honest):
    name = "wrong-byte"
    options = {"tensor": 0, "byte": 0, "when": "always"}  # noqa: RUF012

    def sabotage(self, pairs: list[tuple[str, torch.Tensor]], stamp: Stamp) -> Pairs:
        if self.settings["when"] in {"always", "timed" if self.timed else "untimed"}:
            raw(pairs[int(self.settings["tensor"])][1])[int(self.settings["byte"])] ^= 1
        yield from pairs


class Permuted(Honest):
    """The right bytes in the wrong places, when timed: every sum is right."""

    name = "permuted-when-timed"
    options = {"lanes": 1024}  # noqa: RUF012

    def sabotage(self, pairs: list[tuple[str, torch.Tensor]], stamp: Stamp) -> Pairs:
        if self.timed:
            largest = max((tensor for _, tensor in pairs), key=torch.numel)
            lanes = largest.view(-1).view(torch.int64)[: int(self.settings["lanes"])]
            lanes.copy_(lanes.flip(0))
        yield from pairs


# --- which tensors


class Skips(Honest):
    name = "skips"

    def sabotage(self, pairs: list[tuple[str, torch.Tensor]], stamp: Stamp) -> Pairs:
        yield from pairs[:-1]


class Twice(Honest):
    name = "twice"

    def sabotage(self, pairs: list[tuple[str, torch.Tensor]], stamp: Stamp) -> Pairs:
        yield from [*pairs, pairs[0]]


class Surplus(Honest):
    name = "surplus"

    def sabotage(self, pairs: list[tuple[str, torch.Tensor]], stamp: Stamp) -> Pairs:
        yield from [*pairs, ("lm_head.bonus", torch.ones(3))]


class TwiceForAnother(Honest):
    """When untimed: as many tensors as there should be, but one twice and one never."""

    name = "twice-for-another"

    def sabotage(self, pairs: list[tuple[str, torch.Tensor]], stamp: Stamp) -> Pairs:
        yield from pairs if self.timed else [*pairs[:-1], pairs[0]]


# --- whose memory


class OneBuffer(Honest):
    """Hands out one buffer for all tensors, each right at its yield."""

    name = "one-buffer"
    options = {"ownership": "owned"}  # noqa: RUF012

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Pairs:
        self.ownership = self.settings["ownership"]
        pairs = list(plain(checkpoint))
        buffer = torch.empty(max(tensor.nbytes for _, tensor in pairs), dtype=torch.uint8)
        for name, tensor in pairs:
            part = buffer[: tensor.nbytes]
            part.copy_(raw(tensor))
            yield name, part.view(tensor.dtype).view(tensor.shape)


class ReadsAhead(Honest):
    """Lends a buffer and fills it with the next tensor before it was given back."""

    name = "reads-ahead"
    ownership = "borrowed"

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Pairs:
        pairs = list(plain(checkpoint))
        buffer = torch.empty(max(tensor.nbytes for _, tensor in pairs), dtype=torch.uint8)
        after = [*pairs[1:], pairs[0]]
        for (name, tensor), (_, following) in zip(pairs, after, strict=True):
            buffer[: tensor.nbytes].copy_(raw(tensor))
            ahead = threading.Timer(0.001, buffer[: following.nbytes].copy_, [raw(following)])
            ahead.start()
            yield name, buffer[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            ahead.join()


class NoSuchOwnership(Honest):
    name = "no-such-ownership"
    ownership = "stolen"


# --- what kind of tensor


class Form(Honest):
    """Every tensor in another form; `how` names it."""

    name = "form"
    options = {"how": "dtype"}  # noqa: RUF012

    def sabotage(self, pairs: list[tuple[str, torch.Tensor]], stamp: Stamp) -> Pairs:
        for name, tensor in pairs:
            yield name, FORMS[str(self.settings["how"])](tensor)


class Liar(torch.Tensor):
    """Says of itself that it is empty: nothing to read."""

    nbytes = 0


FORMS = {
    "dtype": lambda tensor: tensor.view(torch.float16),
    "shape": lambda tensor: tensor.reshape(1, *tensor.shape),
    "transposed": lambda tensor: tensor.t() if tensor.dim() == 2 else tensor,
    "strided": lambda tensor: tensor.t().contiguous().t() if tensor.dim() == 2 else tensor,
    "meta": lambda tensor: tensor.to("meta"),
    "subclass": lambda tensor: tensor.as_subclass(Liar),
    "sparse": lambda tensor: tensor.to_sparse(),
    "numpy": lambda tensor: raw(tensor).numpy(),
    "none": lambda tensor: None,
    "resized": lambda tensor: _resized(tensor),
}


def _resized(tensor: torch.Tensor) -> torch.Tensor:
    copied = tensor.clone()
    copied.untyped_storage().resize_(0)
    return copied


class NoPairs(Honest):
    name = "no-pairs"

    def sabotage(self, pairs: list[tuple[str, torch.Tensor]], stamp: Stamp) -> Pairs:
        yield from (tensor for _, tensor in pairs)


class NoIterator(Honest):
    name = "no-iterator"

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Pairs:
        return None


class OddNames(Honest):
    name = "odd-names"

    def sabotage(self, pairs: list[tuple[str, torch.Tensor]], stamp: Stamp) -> Pairs:
        yield from (([name], tensor) for name, tensor in pairs)


# --- ends


class Boom(BaseException):
    pass


class Ends(Honest):
    """Ends half-way; `how` says in which way."""

    name = "ends"
    options = {"how": "raises", "when": "timed"}  # noqa: RUF012

    def sabotage(self, pairs: list[tuple[str, torch.Tensor]], stamp: Stamp) -> Pairs:
        yield from pairs[: len(pairs) // 2]
        if self.timed == (self.settings["when"] == "timed"):
            getattr(self, str(self.settings["how"]))()
        yield from pairs[len(pairs) // 2 :]

    def raises(self) -> None:
        raise RuntimeError("the disk said no")

    def base(self) -> None:
        raise Boom("not an Exception")

    def system_exit(self) -> None:
        sys.exit(0)

    def os_exit(self) -> None:
        os._exit(0)

    def segfault(self) -> None:
        ctypes.string_at(0)

    def killed(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def aborts(self) -> None:
        os.abort()

    def realtime_signal(self) -> None:
        os.kill(os.getpid(), signal.SIGRTMIN + 3)

    def hangs(self) -> None:
        time.sleep(1000)

    def hangs_deaf(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(1000)

    def becomes_another(self) -> None:
        os.execvp("sleep", ["sleep", "1000"])

    def closes_everything(self) -> None:
        os.closerange(0, 256)

    def kills_the_server(self) -> None:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1000)


class CutFile(Honest):
    """Maps a file that is cut short before its pages are touched."""

    name = "cut-file"
    ownership = "mapped"

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Pairs:
        for file, specs in by_file(checkpoint):
            with tempfile.NamedTemporaryFile() as copy:
                copy.write(Path(file.path).read_bytes())
                copy.flush()
                mapped = mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_COPY)
                copy.truncate(4096)
            for spec in specs:
                yield spec.name, tensor_over(memoryview(mapped), spec.offset or 0, spec)
