"""Pickles that are refused: what would execute code, odd tensors, bombs (C31)."""

from __future__ import annotations

import argparse
import collections
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_torch import (
    codes,
    manifest,
    names,
    save,
    zip_of,
)

FORMS = pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])


class Arguments:
    """Stands for transformers' TrainingArguments."""

    learning_rate = 0.1


class Subclass(torch.Tensor):
    pass


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.system, ("touch was-executed",)


@FORMS
@pytest.mark.parametrize(
    "saved",
    [
        argparse.Namespace(lr=0.1),
        Arguments(),
        {"w": torch.ones(2), "args": argparse.Namespace(lr=0.1)},
        {"w": torch.ones(2), "best": np.float64(0.5)},
        {"w": torch.ones(2), "array": np.ones(3)},
        torch.nn.Linear(2, 2),
        {"model": torch.nn.Linear(2, 2)},
        {"w": torch.ones(2).as_subclass(Subclass)},
        {"w": Bomb()},
    ],
    ids=lambda saved: type(saved).__name__,
)
def test_c31_what_would_execute_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: object, legacy: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    path = save(saved, tmp_path / "training_args.bin", legacy=legacy)
    specs, (problem,) = manifest(path)
    assert (specs, problem.code) == ([], "unsafe-pickle")
    assert "weights_only=True" in problem.message
    assert not Path("was-executed").exists()
    with pytest.raises(pickle.UnpicklingError):
        torch.load(str(path), weights_only=True)


@FORMS
def test_c31_other_pickle_protocols(tmp_path: Path, legacy: bool) -> None:
    path = save({"w": torch.ones(2)}, tmp_path / "x.pt", legacy=legacy, pickle_protocol=4)
    assert codes(path) in (["unsupported-pickle"], ["not-weights"])
    path = save({"w": torch.ones(2)}, tmp_path / "y.pt", legacy=legacy, pickle_protocol=3)
    assert (names(path), codes(path)) == (["w"], [])


@FORMS
def test_everything_that_weights_only_allows_is_passed_over(tmp_path: Path, legacy: bool) -> None:
    leaves = {
        "w": torch.ones(2),
        "set": {1, 2},
        "bytes": b"abc",
        "array": bytearray(b"x"),
        "large": 2**80,
        "negative": -(2**40),
        "complex": 1j,
        "counter": collections.Counter([1, 1]),
        "dtype": torch.float16,
        "device": torch.device("cpu"),
        "size": torch.Size([1, 2]),
        "layout": torch.strided,
        "flags": (True, False, None, 1.5, [], (), {}),
        "ordered": collections.OrderedDict(a=1),
    }
    if not legacy:
        leaves["storage"] = torch.ones(2).untyped_storage()
    path = save(leaves, tmp_path / "x.pt", legacy=legacy)
    torch.load(str(path), weights_only=True)
    assert (names(path), codes(path)) == (["w"], [])


@FORMS
@pytest.mark.filterwarnings("ignore")
def test_tensors_that_are_no_plain_arrays(tmp_path: Path, legacy: bool) -> None:
    tensors = {
        "quantised": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
        "channels": torch.quantize_per_channel(
            torch.ones(2, 2), torch.ones(2), torch.zeros(2), 0, torch.qint8
        ),
        "coo": torch.eye(3).to_sparse(),
        "csr": torch.eye(3).to_sparse_csr(),
        "meta": torch.empty(3, device="meta"),
        "plain": torch.ones(2),
    }
    path = save(tensors, tmp_path / "x.pt", legacy=legacy)
    specs, problems = manifest(path)
    assert [spec.name for spec in specs] == ["plain"]
    assert {p.tensor: p.code for p in problems} == dict.fromkeys(
        ["quantised", "channels", "coo", "csr", "meta"], "unsupported-tensor"
    )
    assert "sparse tensor" in next(p.message for p in problems if p.tensor == "coo")


def test_legacy_file_with_a_dtype_that_torch_cannot_read_back(tmp_path: Path) -> None:
    path = save({"w": torch.ones(2).to(torch.float8_e4m3fn)}, tmp_path / "x.pt", legacy=True)
    assert codes(path) == ["legacy-untyped"]
    with pytest.raises(AttributeError):
        torch.load(str(path), weights_only=True)


def long_binput(index: int) -> bytes:
    return b"r" + struct.pack("<I", index)


@pytest.mark.parametrize(
    "code",
    [
        b"]" * 1_000_000 + b"a" * 999_999 + b".",  # lists in lists
        b")" + b"\x85" * 1_000_000 + b"0.",  # tuples in tuples, then POP
        b"}" + b")" + b"\x85" * 300_000 + b"K\x01s.",  # as a key: hashing would overflow the stack
        b"}" + b")q\x00" + b"h\x00\x86q\x00" * 5000 + b"K\x01s.",
        b"]q\x00" + b"h\x00h\x00\x86q\x00" * 5000 + b".",  # doubles with each step
        b"}(X\x01\x00\x00\x00m]q\x00" + b"h\x00h\x00\x86q\x00" * 60 + b"u.",
        b"}q\x00X\x01\x00\x00\x00ah\x00sX\x01\x00\x00\x00bh\x00s.",  # holds itself, twice
        b"N" + long_binput(0xFFFFFFFF) + b".",  # a memo of 4 billion places
        b"X\xff\xff\xff\xff" + b"a" * 100,
        b"(" * 1_000_000 + b".",
        b"ccollections\nOrderedDict\n(]q\x00(" + b"K\x01K\x02\x86" * 10_000 + b"e"
        b"tq\x01R" + b"ccollections\nOrderedDict\nh\x01R" * 10_000 + b".",
    ],
    ids=range(11),
)
def test_pickle_bombs_end(tmp_path: Path, code: bytes) -> None:
    specs, problems = manifest(zip_of(b"\x80\x02" + code, tmp_path / "bomb.pt"))
    assert specs == []
    assert len(problems) == 1
