"""The npcache format: bit-exact, never outside its folder, and every fault by name."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_torch import DTYPES, Stamps, named, no_stamp, npcache_checkpoint, of_bytes, raw

from loaders.checkpoint.dtypes import UnsupportedDtypeError
from loaders.checkpoint.npcache_dir import read_npcache
from loaders.checkpoint.npcache_write import write_npcache
from loaders.io.errors import TruncatedError
from loaders.npcache import NpCache


def loaded(folder: Path) -> dict[str, torch.Tensor]:
    return named(NpCache().load(npcache_checkpoint(folder), no_stamp))


def codes(folder: Path) -> list[str]:
    return [problem.code for problem in read_npcache(str(folder))[2]]


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        got = found[name]
        assert (got.dtype, got.shape) == (tensor.dtype, tensor.shape)
        assert got.is_contiguous()
        assert raw(got) == raw(tensor)


def engine_cache(folder: Path, arrays: dict[str, np.ndarray], suffix: str = "") -> None:
    """As an engine writes it: files named as the tensors, a list of names."""
    (folder / "np").mkdir()
    for name, array in arrays.items():
        with (folder / "np" / (name + suffix)).open("wb") as out:
            np.save(out, array)
    (folder / "np" / "weight_names.json").write_text(json.dumps(list(arrays)))


def test_c32_bit_exact(tmp_path: Path) -> None:
    """NaN payloads, both zeros, denormals, infinities."""
    bits16 = torch.tensor(
        [0x7FC1, 0xFFC2, 0x7F81, 0x8000, 0x0000, 0x0001, 0x807F, 0x7F80, 0xFF80, 0x3F80],
        dtype=torch.int32,
    ).to(torch.uint16)
    bits8 = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    tensors = {
        "bf16": bits16.view(torch.bfloat16),
        "f16": bits16.view(torch.float16),
        "f32": torch.tensor([0x7FC00001, 0x7F800001, 1], dtype=torch.int32).view(torch.float32),
        **{
            str(dtype): bits8.view(dtype)
            for dtype in (
                torch.float8_e4m3fn,
                torch.float8_e5m2,
                torch.float8_e4m3fnuz,
                torch.float8_e5m2fnuz,
            )
        },
    }
    write_npcache(iter(tensors.items()), str(tmp_path))
    same(loaded(tmp_path), tensors)
    specs = read_npcache(str(tmp_path))[1]
    assert [spec.dtype for spec in specs[:2]] == ["bfloat16", "float16"]
    # the file itself is an ordinary array of unsigned integers
    assert np.load(tmp_path / "np" / "00000000.npy").dtype == np.dtype("<u2")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(shape=st.lists(st.integers(0, 3), max_size=4), seed=st.integers(0, 2**31))
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_every_dtype_and_shape(
    tmp_path_factory: pytest.TempPathFactory, dtype: torch.dtype, shape: list[int], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    width = torch.empty((), dtype=dtype).element_size()
    count = int(np.prod(shape, dtype=int)) * width
    high = 2 if dtype is torch.bool else 256
    bits = np.random.default_rng(seed).integers(0, high, count, dtype=np.uint8)
    tensor = of_bytes(bits.tolist(), dtype, shape)
    write_npcache(iter([("t", tensor)]), str(folder))
    same(loaded(folder), {"t": tensor})
    (spec,) = npcache_checkpoint(folder).tensors
    data = (folder / spec.file).read_bytes()
    assert spec.offset is not None
    assert data[spec.offset :] == raw(tensor)
    assert (spec.nbytes, spec.shape) == (count, tuple(shape))


def test_c15_c16_empty_scalar_and_views(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "empty": torch.empty(0, 8),
        "scalar": torch.tensor(1.5, dtype=torch.bfloat16),
        "one": torch.tensor([1.5], dtype=torch.bfloat16),
        "transposed": base.t(),
        "expanded": base[:1].expand(4, 4),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "odd stride": base[::2][:1, 0],
        "strideless": torch.from_numpy(np.empty(0, "<f4")),
        "parameter": torch.nn.Parameter(base),
        "last": torch.empty(0),
    }
    write_npcache(iter(tensors.items()), str(tmp_path))
    same(loaded(tmp_path), tensors)


NAMES = [
    *("../../escape", "/etc/passwd", "a/b", "..", ".", "", "nul\0byte", "x" * 5000, "ünï", "a\nb"),
    *("weight_names.json", "C:\\windows", "00000001.npy"),
]
UNSAFE = [
    *("../secret", "/etc/passwd", "a/b", "..", ".", "", "nul\0byte", "x" * 256),
    *("weight_names.json", "..\\secret", "tab\tname"),
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name)[:20])
def test_no_name_becomes_a_path(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "deep" / "cache"
    tensors = {name: torch.ones(2), "other": torch.zeros(3)}
    write_npcache(iter(tensors.items()), str(folder))
    same(loaded(folder), tensors)
    assert sorted(path.name for path in (folder / "np").iterdir()) == [
        "00000000.npy",
        "00000001.npy",
        "weight_names.json",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]


@pytest.mark.parametrize("name", UNSAFE, ids=lambda name: repr(name)[:20])
@pytest.mark.parametrize("ours", [False, True], ids=["engine", "ours"])
def test_unsafe_names_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, ours: bool
) -> None:
    np.save(tmp_path / "secret", np.ones(3))
    (tmp_path / "secret.npy").rename(tmp_path / "secret")
    engine_cache(tmp_path, {"good": np.ones(2, "<f4")})
    entry = {"file": name, "dtype": "float64", "shape": [3]}
    good = {"file": "good", "dtype": "float32", "shape": [2]}
    index = {"bad": entry, "good": good} if ours else [name, "good"]
    (tmp_path / "np" / "weight_names.json").write_text(json.dumps(index))
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *a: (opened.append(str(path)), real(path, *a))[1])
    _, specs, (problem,) = read_npcache(str(tmp_path))
    assert [spec.name for spec in specs] == ["good"]
    assert problem.code == "unsafe-path"
    assert problem.tensor == ("bad" if ours else name)
    assert {Path(path).name for path in opened} == {"weight_names.json", "good"}


@pytest.mark.parametrize("suffix", ["", ".npy"])
def test_the_engines_form(tmp_path: Path, suffix: str) -> None:
    arrays = {
        "model.layers.0.weight": np.arange(6, dtype="<f4").reshape(2, 3),
        "half": np.ones(3, "<f2"),
        "flags": np.array([True, False]),
        "bytes": np.arange(5, dtype=np.int8),
        "words": np.arange(5, dtype="<u2"),
        "scalar": np.array(2.5),
        "empty": np.empty((0, 3), "<f4"),
    }
    engine_cache(tmp_path, arrays, suffix)
    assert codes(tmp_path) == []
    same(loaded(tmp_path), {name: torch.from_numpy(array) for name, array in arrays.items()})


def test_fortran_order(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(24, dtype="<f4").reshape(2, 3, 4))
    engine_cache(tmp_path, {"f": array, "row": np.asfortranarray(np.ones((1, 3), "<f4"))})
    specs = {spec.name: spec for spec in read_npcache(str(tmp_path))[1]}
    assert specs["f"].offset is None
    assert specs["row"].offset is not None
    same(
        loaded(tmp_path),
        {"f": torch.from_numpy(array.copy(order="C")), "row": torch.ones(1, 3)},
    )


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.system, ("touch was-executed",)


def test_arrays_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C35 (">f2") and others, each by name."""
    monkeypatch.chdir(tmp_path)
    arrays = {
        "big": np.ones(3, ">f2"),
        "objects": np.array([Bomb()], dtype=object),
        "record": np.zeros(2, dtype=[("a", "<f4")]),
        "void": np.zeros(2, dtype="V2"),
        "text": np.array(["abc"]),
        "time": np.zeros(2, dtype="<M8[s]"),
        "long": np.zeros(2, dtype=np.longdouble),
    }
    engine_cache(tmp_path, arrays)
    _, specs, problems = read_npcache(str(tmp_path))
    assert specs == []
    assert {p.tensor: p.code for p in problems} == {
        "big": "byte-order",
        "objects": "unsafe-pickle",
        "record": "unsupported-dtype",
        "void": "unsupported-dtype",
        "text": "unsupported-dtype",
        "time": "unsupported-dtype",
        "long": "unsupported-dtype",
    }
    assert not Path("was-executed").exists()


def npy(header: bytes, data: bytes = b"", version: bytes = b"\x01\0") -> bytes:
    width = "<H" if version[0] == 1 else "<I"
    return b"\x93NUMPY" + version + struct.pack(width, len(header)) + header + data


PLAIN = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty-file"),
        (b"\x93NUM", "not-weights"),
        (b"\x93NUMPY\x01", "not-weights"),
        (b"PK\x03\x04" + b"\0" * 30, "not-weights"),
        (pickle.dumps(np.ones(2)), "not-weights"),
        (npy(PLAIN, b"1234567"), "truncated-file"),
        (npy(PLAIN, b"123456789"), "trailing-bytes"),
        (npy(PLAIN, b"12345678")[:30], "corrupt-header"),
        (npy(PLAIN, b"12345678", b"\x09\0"), "unsupported-npy"),
        (b"\x93NUMPY\x02\0\xff\xff\xff\xff" + PLAIN, "corrupt-header"),
        (npy(b"{'descr': '<f4'}"), "corrupt-header"),
        (npy(PLAIN.replace(b"(2,)", b"(-2,)")), "corrupt-header"),
        (npy(PLAIN.replace(b"(2,)", b"(2.0,)")), "corrupt-header"),
        (npy(PLAIN.replace(b"(2,)", b"[2]")), "corrupt-header"),
        (npy(PLAIN.replace(b"False", b"0")), "corrupt-header"),
        (npy(PLAIN.replace(b"(2,)", b"(9999999999, 9999999999)")), "truncated-file"),
        (npy(PLAIN.replace(b"(2,)", b"(2, __import__('os'))")), "corrupt-header"),
        (npy(b"(" * 9000), "corrupt-header"),
        (npy(b"-" * 9000 + b"1"), "corrupt-header"),
        (npy(b"\xff" * 50), "corrupt-header"),
        (npy(b"[[[1]]]"), "corrupt-header"),
    ],
    ids=range(21),
)
def test_damaged_arrays(tmp_path: Path, content: bytes, code: str) -> None:
    engine_cache(tmp_path, {"w": np.ones(2, "<f4")})
    (tmp_path / "np" / "w").write_bytes(content)
    _, specs, (problem,) = read_npcache(str(tmp_path))
    assert specs == []
    assert (problem.code, problem.tensor, problem.file) == (code, "w", "np/w")


@pytest.mark.parametrize("version", [b"\x01\0", b"\x02\0", b"\x03\0"])
def test_npy_versions(tmp_path: Path, version: bytes) -> None:
    engine_cache(tmp_path, {"w": np.zeros(2, "<f4")})
    content = npy(PLAIN, struct.pack("<2f", 1, 2), version)
    (tmp_path / "np" / "w").write_bytes(content)
    same(loaded(tmp_path), {"w": torch.tensor([1.0, 2.0])})


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damaged_bytes_never_raise(tmp_path: Path, data: st.DataObject) -> None:
    if not (tmp_path / "np").exists():
        engine_cache(tmp_path, {"w": np.ones((2, 2), "<f4")})
    broken = bytearray(npy(PLAIN, b"12345678"))
    for _ in range(data.draw(st.integers(1, 3))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "np" / "w").write_bytes(broken)
    _, specs, problems = read_npcache(str(tmp_path))
    assert len(specs) + len(problems) == 1


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ("", ["bad-index"]),
        ("{", ["bad-index"]),
        ("7", ["bad-index"]),
        ("null", ["bad-index"]),
        ("[1]", ["bad-index"]),
        ('["a", ["b"]]', ["bad-index"]),
        ("[" * 100_000, ["bad-index"]),
        ("[]", ["no-tensors"]),
        ("{}", ["no-tensors"]),
        ('["w", "w"]', ["duplicate-tensor"]),
        ('["w", "absent"]', ["missing-file"]),
        ('{"w": "w"}', ["bad-index"]),
        ('{"w": {"file": 7, "dtype": "float32", "shape": [2]}}', ["bad-index"]),
        ('{"w": {"file": "w", "dtype": "float32"}}', ["bad-index"]),
        ('{"w": {"file": "w", "dtype": "float32", "shape": [2.0]}}', ["bad-index"]),
        ('{"w": {"file": "w", "dtype": "float32", "shape": [3]}}', ["shape-mismatch"]),
        ('{"w": {"file": "w", "dtype": "bfloat16", "shape": [2]}}', ["dtype-mismatch"]),
        ('{"w": {"file": "w", "dtype": "int32", "shape": [2]}}', ["dtype-mismatch"]),
        ('{"w": {"file": "w", "dtype": "float9", "shape": [2]}}', ["unsupported-dtype"]),
        ('{"w": {"file": "w", "dtype": "float32", "shape": [2]}}', []),
    ],
    ids=range(20),
)
def test_the_index(tmp_path: Path, index: str, expected: list[str]) -> None:
    engine_cache(tmp_path, {"w": np.ones(2, "<f4")})
    (tmp_path / "np" / "weight_names.json").write_text(index)
    assert codes(tmp_path) == expected


def test_a_key_that_stands_twice(tmp_path: Path) -> None:
    engine_cache(tmp_path, {"w": np.ones(2, "<f4")})
    entry = '"w": {"file": "w", "dtype": "float32", "shape": [2]}'
    (tmp_path / "np" / "weight_names.json").write_text(f"{{{entry}, {entry}}}")
    assert codes(tmp_path) == ["duplicate-tensor"]


def test_without_a_cache(tmp_path: Path) -> None:
    assert codes(tmp_path) == ["missing-file"]
    (tmp_path / "np").mkdir()
    os.mkfifo(tmp_path / "np" / "weight_names.json")
    assert codes(tmp_path) == ["unreadable-file"]


def test_pipes_and_folders_in_the_cache(tmp_path: Path) -> None:
    engine_cache(tmp_path, {"pipe": np.ones(1), "folder": np.ones(1)})
    for name in ("pipe", "folder"):
        (tmp_path / "np" / name).unlink()
    os.mkfifo(tmp_path / "np" / "pipe")
    (tmp_path / "np" / "folder").mkdir()
    assert codes(tmp_path) == ["unreadable-file", "unreadable-file"]


def test_writing_is_all_or_nothing(tmp_path: Path) -> None:
    def interrupted() -> Iterator[tuple[str, torch.Tensor]]:
        yield "a", torch.ones(2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_npcache(interrupted(), str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="two tensors have the name 'a'"):
        write_npcache(iter([("a", torch.ones(1)), ("a", torch.ones(1))]), str(tmp_path))
    with pytest.raises(UnsupportedDtypeError):
        write_npcache(iter([("a", torch.empty(1, dtype=torch.bits8))]), str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    write_npcache(iter([("a", torch.ones(1))]), str(tmp_path))
    with pytest.raises(FileExistsError, match="there already"):
        write_npcache(iter([("b", torch.ones(1))]), str(tmp_path))
    same(loaded(tmp_path), {"a": torch.ones(1)})
    assert [path.name for path in tmp_path.iterdir()] == ["np"]


def test_the_loader_owns_and_stamps(tmp_path: Path) -> None:
    write_npcache(iter([("a", torch.ones(4)), ("b", torch.ones(2))]), str(tmp_path))
    stamps = Stamps()
    found = named(NpCache().load(npcache_checkpoint(tmp_path), stamps))
    assert stamps.seen == ["allocate", "open"] * 2
    found["a"].zero_()  # its own memory
    assert loaded(tmp_path)["a"].tolist() == [1.0] * 4
    assert NpCache().memory_bytes(npcache_checkpoint(tmp_path)) == 24


def test_a_file_cut_off_after_it_was_examined(tmp_path: Path) -> None:
    write_npcache(iter([("a", torch.ones(400))]), str(tmp_path))
    checkpoint = npcache_checkpoint(tmp_path)
    os.truncate(tmp_path / "np" / "00000000.npy", 600)
    with pytest.raises(TruncatedError, match=r"00000000\.npy"):
        named(NpCache().load(checkpoint, no_stamp))
