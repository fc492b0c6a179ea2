"""Damaged torch files, and other things under a torch file's name."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tiny_torch import (
    codes,
    manifest,
    names,
    repack,
    save,
)

from loaders.checkpoint import torch_pickle
from loaders.checkpoint.torch_values import RefusedError

FORMS = pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])


@FORMS
def test_truncated_anywhere(tmp_path: Path, legacy: bool) -> None:
    path = save({"a": torch.ones(8), "b": torch.ones(5)}, tmp_path / "x.pt", legacy=legacy)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        specs, problems = manifest(path)
        if length == 0:
            assert [p.code for p in problems] == ["empty-file"]
        assert [p.severity for p in problems] == ["error"], length
        assert specs == []


@FORMS
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damaged_bytes_never_raise(tmp_path: Path, legacy: bool, data: st.DataObject) -> None:
    path = tmp_path / "x.pt"
    original = save({"a": torch.ones(8), "b.c": torch.ones(2, 2).t()}, path, legacy=legacy)
    broken = bytearray(original.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(broken)
    specs, problems = manifest(path)
    assert specs or problems
    for spec in specs:
        assert spec.offset is None or 0 <= spec.offset <= len(broken) - spec.nbytes


def test_any_damaged_byte_of_the_directory_is_named(tmp_path: Path) -> None:
    """Each byte of the zip's directory in turn, with the values that make numbers huge or negative:
    a record can be said to begin where no file reaches, or before the file."""
    path = tmp_path / "x.pt"
    original = save({"a": torch.ones(8)}, path, legacy=False).read_bytes()
    start = original.index(b"PK\x01\x02")
    for at in range(start, len(original)):
        for value in (0x00, 0x7F, 0x80, 0xFF):
            broken = bytearray(original)
            broken[at] = value
            path.write_bytes(broken)
            specs, problems = manifest(path)
            assert specs or problems, (at, value)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_pickles_of_random_bytes(code: bytes) -> None:
    try:
        torch_pickle.unpickle(io.BytesIO(b"\x80\x02" + code))
    except RefusedError as error:
        assert error.code  # noqa: PT017


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (b"", "empty-file", "0 bytes"),
        (b"\0" * 4096, "not-weights", "zero bytes"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n",
            "lfs-pointer",
            "git lfs pull",
        ),
        (b"<!DOCTYPE html><html></html>", "not-weights", "web page"),
        (b'{"error": "not found"}', "not-weights", "text"),
        (b"\x1f\x8b\x08\x00" + b"x" * 40, "not-weights", "gzip"),
        (b"GGUF\x03\0\0\0" + b"x" * 40, "not-weights", "GGUF"),
        (b"\x93NUMPY\x01\0" + b"x" * 40, "not-weights", "NumPy"),
        (b"\x7fELF" + bytes(range(1, 40)), "not-weights", "first bytes"),
        (pickle.dumps({"w": [1.0]}, protocol=2), "not-weights", "not written by torch.save"),
        (pickle.dumps(np.ones(3), protocol=2), "not-weights", "none of torch.save"),
        (pickle.dumps({"w": 1}, protocol=5), "not-weights", "none of torch.save"),
    ],
)
def test_other_things_under_the_name(tmp_path: Path, content: bytes, code: str, said: str) -> None:
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(content)
    specs, (problem,) = manifest(path)
    assert (specs, problem.code) == ([], code)
    assert said in problem.message


@pytest.mark.parametrize("count", [1, 50])
def test_safetensors_under_the_name(tmp_path: Path, count: int) -> None:
    """With 50 tensors the header's length begins as a pickle does in some files."""
    save_file({f"w{i}": torch.ones(2) for i in range(count)}, tmp_path / "x.bin")
    (problem,) = manifest(tmp_path / "x.bin")[1]
    assert "safetensors" in problem.message
    header = b'{"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    (tmp_path / "y.bin").write_bytes(struct.pack("<Q", 128) + header.ljust(128))
    (problem,) = manifest(tmp_path / "y.bin")[1]
    assert "safetensors" in problem.message


def test_c27_a_real_tar(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.bin", "w") as tar:
        for name in ("storages", "tensors", "pickle"):
            tar.addfile(tarfile.TarInfo(name))
    assert codes(tmp_path / "x.bin") == ["tar-archive"]


@FORMS
def test_c27_pth_tar_is_only_a_name(tmp_path: Path, legacy: bool) -> None:
    path = save({"w": torch.ones(2)}, tmp_path / "model.pth.tar", legacy=legacy)
    assert (names(path), codes(path)) == (["w"], [])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), tmp_path / "x.pt")
    assert codes(tmp_path / "x.pt") == ["torchscript"]


def test_other_zip_archives(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.ones(3))
    (problem,) = manifest(tmp_path / "x.npz")[1]
    assert problem.code == "not-weights"
    assert "a.npy" in problem.message
    with zipfile.ZipFile(tmp_path / "none.pt", "w"):
        pass
    assert len(codes(tmp_path / "none.pt")) == 1


def test_changed_zip_archives(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    weights = {"a": torch.ones(8), "b": torch.ones(8)}

    def made(**how: object) -> list[str]:
        save(weights, path)
        repack(path, **how)
        return codes(path)

    assert made(compress=["data/1"]) == ["compressed-record"]
    assert made(compress=["data.pkl"]) == ["compressed-record"]
    assert made(leave_out=["data/1"]) == ["missing-storage"]
    assert made(change={"data/1": lambda d: d[:-4]}) == ["storage-size"]
    assert made(change={"data/1": lambda d: d + b"more"}) == ["storage-size"]
    assert made(leave_out=["data.pkl"]) == ["not-weights"]
    with pytest.warns(UserWarning, match="Duplicate"):
        assert made(add={"data/1": b"x"}) == ["duplicate-record"]
    save(weights, path)
    data = bytearray(path.read_bytes())
    data[data.index(b"rebuild_tensor")] ^= 1
    path.write_bytes(data)
    assert codes(path) == ["corrupt-archive"]


def test_a_tensor_beyond_its_storage(tmp_path: Path) -> None:
    path = save({"w": torch.ones(200)}, tmp_path / "x.pt")
    # BININT1 200 is the storage's size and then the shape; only the shape is changed
    data = b"K\xc8\x85"
    repack(path, change={"data.pkl": lambda d: d.replace(data, b"K\xc9\x85")})
    assert codes(path) == ["out-of-bounds"]


def test_unusual_paths(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.bin")
    for name in ("pipe.bin", "absent.bin", "."):
        assert codes(tmp_path / name) == ["unreadable-file"]
    for name in ("ünï code.pt", "new\nline.pt", "a.b.c.bin"):
        path = save({"w": torch.ones(2)}, tmp_path / name)
        assert (names(path), codes(path)) == (["w"], [])
