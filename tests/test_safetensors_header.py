"""Our header parser: every way a file can be wrong, and agreement with the library."""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch

from loaders.checkpoint import dtypes
from loaders.checkpoint.read import examine, open_checkpoint
from loaders.checkpoint.safetensors_header import Header, parse_header
from tests import tiny
from tests.tiny_headers import header_of, library_takes, same_as_library


def codes(header: Header) -> set[str]:
    return {problem.code for problem in header.problems}


def one(dtype: str, shape: Any, offsets: Any, data: int = 0, **more: Any) -> bytes:
    entry = {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}
    return tiny.raw_file({"w": entry}, b"\1" * data)


def written(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    return path


# The faults of cases C08, C12, C13, C14, C21 and their relatives: bytes -> the problem's code.
FAULTY: dict[str, tuple[bytes, str]] = {
    "c08 trailing bytes": (one("U8", [4], [0, 4], 20), "trailing-bytes"),
    "c08 one trailing byte": (one("U8", [4], [0, 4], 5), "trailing-bytes"),
    "c08 trailing, no tensor": (tiny.raw_file({}, b"x" * 16), "trailing-bytes"),
    "truncated by one": (one("U8", [4], [0, 4], 3), "truncated-file"),
    "truncated: no data": (one("F32", [4], [0, 16], 0), "truncated-file"),
    "c12 begin after end": (one("U8", [8], [16, 8], 16), "offsets-invalid"),
    "c12 negative": (one("U8", [4], [-1, 3], 4), "offsets-invalid"),
    "c12 wraps": (one("U8", [4], [2**64 - 2, 2], 4), "offsets-invalid"),
    "c12 beyond 64 bits": (one("U8", [4], [0, 2**64], 4), "offsets-invalid"),
    "c12 shape too big": (one("F32", [1000, 1000], [0, 4], 4), "size-mismatch"),
    "c12 shape too small": (one("F32", [1], [0, 8], 8), "size-mismatch"),
    "c12 shape overflows": (one("F32", [2**32, 2**32], [0, 0]), "shape-invalid"),
    "c12 overflows before zero": (one("U8", [2**33, 2**33, 0], [0, 0]), "shape-invalid"),
    "c12 bits overflow": (one("F64", [2**60], [0, 2**63], 0), "shape-invalid"),
    "c12 float offset": (one("U8", [4], [0.0, 4.0], 4), "offsets-invalid"),
    "c12 text offset": (one("U8", [4], ["0", "4"], 4), "offsets-invalid"),
    "c12 true offset": (one("U8", [1], [False, True], 1), "offsets-invalid"),
    "c12 three offsets": (one("U8", [4], [0, 4, 4], 4), "offsets-invalid"),
    "c12 one offset": (one("U8", [4], [4], 4), "offsets-invalid"),
    "c12 null offsets": (one("U8", [4], None, 4), "offsets-invalid"),
    "c12 negative dimension": (one("U8", [-1, -4], [0, 4], 4), "shape-invalid"),
    "c12 float dimension": (one("U8", [4.0], [0, 4], 4), "shape-invalid"),
    "c12 true dimension": (one("U8", [True], [0, 1], 1), "shape-invalid"),
    "c12 shape is a number": (one("U8", 4, [0, 4], 4), "shape-invalid"),
    "c12 minus zero": (
        tiny.raw_file('{"w":{"dtype":"U8","shape":[1],"data_offsets":[-0,1]}}', b"x"),
        "offsets-invalid",
    ),
    "c12 starts late": (one("U8", [4], [4, 8], 8), "hole"),
    "c13 unknown, good offsets": (one("F3_X", [4], [0, 4], 4), "dtype-unknown"),
    "c13 unknown, too short": (one("F3_X", [4], [0, 400], 4), "truncated-file"),
    "c13 unknown, trailing": (one("F3_X", [4], [0, 4], 9), "trailing-bytes"),
    "c13 unknown, reversed": (one("F3_X", [4], [4, 0], 4), "offsets-invalid"),
    "c13 lower case": (one("f32", [1], [0, 4], 4), "dtype-unknown"),
    "c13 torch's name": (one("float32", [1], [0, 4], 4), "dtype-unknown"),
    "c13 empty": (one("", [1], [0, 4], 4), "dtype-unknown"),
    "c13 number": (one(4, [1], [0, 4], 4), "header-invalid"),  # type: ignore[arg-type]
    "c14 twice, one after another": (
        tiny.raw_file(
            '{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},'
            '"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}',
            b"xxxx",
        ),
        "duplicate-key",
    ),
    "c14 twice, one escaped": (
        tiny.raw_file(
            '{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},'
            '"\\u0061":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}',
            b"xxxx",
        ),
        "duplicate-key",
    ),
    "c14 twice the same field": (
        tiny.raw_file('{"a":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}}', b"xx"),
        "duplicate-key",
    ),
    "c14 metadata twice": (
        tiny.raw_file('{"__metadata__":{},"__metadata__":{"a":"b"}}'),
        "duplicate-key",
    ),
    "c19 an entry without fields": (tiny.raw_file({"lm_head.weight": {}}), "header-invalid"),
    "an entry that is null": (tiny.raw_file({"w": None}), "header-invalid"),
    "an entry that is text": (tiny.raw_file({"w": "F32"}), "header-invalid"),
    "c21 metadata number": (tiny.raw_file({"__metadata__": {"n": 1}}), "metadata-invalid"),
    "c21 metadata null value": (tiny.raw_file({"__metadata__": {"n": None}}), "metadata-invalid"),
    "c21 metadata nested": (tiny.raw_file({"__metadata__": {"n": {}}}), "metadata-invalid"),
    "c21 metadata list": (tiny.raw_file({"__metadata__": []}), "metadata-invalid"),
    "c21 metadata text": (tiny.raw_file({"__metadata__": "pt"}), "metadata-invalid"),
    "overlap": (
        tiny.raw_file(
            {
                "a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                "b": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]},
            },
            b"x" * 6,
        ),
        "overlap",
    ),
    "an empty tensor inside another": (
        tiny.raw_file(
            {
                "a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                "b": {"dtype": "U8", "shape": [0], "data_offsets": [2, 2]},
            },
            b"x" * 4,
        ),
        "overlap",
    ),
    "hole between": (
        tiny.raw_file(
            {
                "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
                "b": {"dtype": "U8", "shape": [1], "data_offsets": [8, 9]},
            },
            b"x" * 9,
        ),
        "hole",
    ),
    "0 bytes": (b"", "empty-file"),
    "4 bytes": (b"\x08\x01\x00\x00", "header-truncated"),
    "7 bytes": (b"\x08" + b"\0" * 6, "header-truncated"),
    "8 zero bytes": (b"\0" * 8, "not-weights"),
    "reserved space": (b"\0" * 4096, "not-weights"),
    "length only": (struct.pack("<Q", 10), "header-truncated"),
    "cut in its header": (tiny.raw_file({"w": {}}, length=4000), "header-truncated"),
    "header of 2^64-1": (b"\xff" * 8 + b"{}", "header-too-large"),
    "header above the limit": (struct.pack("<Q", 100_000_001) + b"{}", "header-too-large"),
    "no JSON": (tiny.raw_file("{oops}"), "header-invalid"),
    "a list": (tiny.raw_file([]), "header-invalid"),
    "null": (tiny.raw_file(None), "header-invalid"),
    "only spaces": (tiny.raw_file("    "), "header-invalid"),
    "byte order mark": (tiny.raw_file("\ufeff{}"), "header-invalid"),
    "zero bytes behind": (tiny.raw_file(b"{}\0\0\0"), "header-invalid"),
    "two documents": (tiny.raw_file("{}{}"), "header-invalid"),
    "not UTF-8": (tiny.raw_file(b'{"\xff":{}}'), "header-invalid"),
    "half a surrogate": (tiny.raw_file('{"\\ud800":{}}'), "header-invalid"),
    "NaN": (tiny.raw_file('{"w":NaN}'), "header-invalid"),
    "a bare line break in a name": (tiny.raw_file('{"a\nb":{}}'), "header-invalid"),
    "nested beyond reason": (tiny.raw_file("[" * 100_000), "header-invalid"),
    "nested beyond the reference": (
        tiny.raw_file(
            '{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":'
            + "[" * 126 + "]" * 126 + "}}",
            b"x",
        ),
        "header-invalid",
    ),
    "LFS pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4999\n",
        "lfs-pointer",
    ),
    "HTML": (b"<!DOCTYPE html><html><body>404</body></html>", "not-weights"),
    "HTML after a blank line": (b"\n\n  <html>Sign in</html>", "not-weights"),
    "XML error": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "not-weights"),
    "JSON error": (b'{"error":"Repository not found"}', "not-weights"),
    "plain text error": (b"Entry not found", "not-weights"),
    "short text": (b"404\n", "not-weights"),
    "torch zip": (b"PK\x03\x04\x00\x00\x08\x08" + b"\0" * 99, "not-weights"),
    "pickle": (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + b"\0" * 99, "not-weights"),
    "GGUF": (b"GGUF\x03\x00\x00\x00" + b"\0" * 99, "not-weights"),
    "gzip": (b"\x1f\x8b\x08\x00\x00\x00\x00\x00" + b"\0" * 99, "not-weights"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTY)
def test_c08_c12_c13_c14_c21_faults_have_names(tmp_path: Path, name: str) -> None:
    content, code = FAULTY[name]
    path = written(tmp_path, content)
    header = header_of(path)
    assert code in codes(header)
    assert not library_takes(path)
    for problem in header.problems:
        assert problem.message.startswith("x.safetensors: ")
        assert "\n" not in problem.message


SOUND: dict[str, bytes] = {
    "c15 [0]": one("F32", [0], [0, 0]),
    "c15 [0,8]": one("BF16", [0, 8], [0, 0]),
    "c15 [4,0]": one("I8", [4, 0], [0, 0]),
    "c15 huge and empty": one("U8", [0, 2**40, 2**40], [0, 0]),
    "c16 scalar": one("F32", [], [0, 4], 4),
    "c16 one": one("F32", [1], [0, 4], 4),
    "c21 metadata absent": one("U8", [1], [0, 1], 1),
    "c21 metadata {}": tiny.raw_file({"__metadata__": {}}),
    "c21 metadata null": tiny.raw_file({"__metadata__": None}),
    "c21 metadata text": tiny.raw_file({"__metadata__": {"format": "np"}}),
    "nothing at all": tiny.raw_file({}),
    "leading spaces": tiny.raw_file("  \n{}"),
    "trailing spaces": tiny.raw_file({}, pad=5),
    "unaligned": one("F32", [1], [0, 4], 4, note="odd length"),
    "empty name": tiny.raw_file('{"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"),
    "zero byte in a name": tiny.raw_file(
        '{"a\\u0000":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"
    ),
    "pair of surrogates": tiny.raw_file(
        '{"\\ud83d\\ude00":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"
    ),
    "an extra field": one("U8", [1], [0, 1], 1, x={"y": [1, 2.5, None]}),
    "an extra field twice": tiny.raw_file(
        '{"a":{"x":1,"x":2,"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"
    ),
    "entry as a list": tiny.raw_file('{"a":["U8",[1],[0,1]]}', b"x"),
    "dtype as an object": tiny.raw_file(
        '{"a":{"dtype":{"U8":null},"shape":[1],"data_offsets":[0,1]}}', b"x"
    ),
    "escaped metadata key": tiny.raw_file('{"\\u005f_metadata__":{"a":"b"}}'),
    "unaligned tensor": tiny.raw_file(
        {
            "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
            "b": {"dtype": "F64", "shape": [1], "data_offsets": [1, 9]},
        },
        b"x" * 9,
    ),
    "against the order of names": tiny.raw_file(
        {
            "a": {"dtype": "U8", "shape": [3], "data_offsets": [2, 5]},
            "b": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
        },
        b"x" * 5,
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_c15_c16_c21_sound_files_are_taken(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, SOUND[name])
    assert library_takes(path)
    header = header_of(path)
    assert not [problem for problem in header.problems if problem.severity == "error"]
    same_as_library(path, header)


@pytest.mark.parametrize("order", [("e", "a", "b"), ("a", "e", "b"), ("a", "b", "e"), ("e",)])
@pytest.mark.parametrize("shape", [[0], [0, 8], [4, 0]])
def test_c15_zero_size_tensors_anywhere(
    tmp_path: Path, order: tuple[str, ...], shape: list[int]
) -> None:
    tensors = {name: ("F32", shape if name == "e" else [2]) for name in order}
    path = tiny.write_tensors(tmp_path / "m.safetensors", tensors)
    checkpoint = open_checkpoint(tmp_path)
    assert len(checkpoint.tensors) == len(order)
    empty = next(tensor for tensor in checkpoint.tensors if tensor.name == "e")
    assert (empty.nbytes, empty.shape) == (0, tuple(shape))
    assert checkpoint.tensor_bytes == 8 * (len(order) - 1)
    same_as_library(path, header_of(path))


def test_c17_c18_every_dtype_is_named_as_torch_names_it(tmp_path: Path) -> None:
    for code in tiny.BITS:
        path = tiny.write_tensors(tmp_path / f"{code}.safetensors", {"w": (code, [2, 8])})
        header = header_of(path)
        row = dtypes.BY_CODE[code]
        assert row.bits == tiny.BITS[code]
        assert header.tensors[0].dtype == row.name
        assert library_takes(path)
        if row.itemsize is None:
            assert codes(header) == {"dtype-unloadable"}
        else:
            assert not header.problems
            same_as_library(path, header)
            assert np.dtype(dtypes.numpy_dtype(row.name)).itemsize == row.itemsize
    assert set(tiny.BITS) == set(dtypes.BY_CODE)


def test_c17_f4_has_the_packed_shape_that_torch_sees(tmp_path: Path) -> None:
    path = tiny.write_tensors(tmp_path / "f4.safetensors", {"w": ("F4", [2, 8])})
    (tensor,) = header_of(path).tensors
    assert (tensor.dtype, tensor.shape, tensor.nbytes) == ("float4_e2m1fn_x2", (2, 4), 8)


@pytest.mark.parametrize("shape", [[2, 1], [4, 3], [0, 3]])
def test_c17_f4_that_torch_cannot_pack_is_refused_by_name(tmp_path: Path, shape: list[int]) -> None:
    path = tiny.write_tensors(tmp_path / "f4.safetensors", {"w": ("F4", shape)})
    header = header_of(path)
    assert codes(header) == {"dtype-unloadable"}
    assert "'w'" in header.problems[0].message
    with safetensors.safe_open(str(path), "pt") as file, pytest.raises(safetensors.SafetensorError):
        file.get_tensor("w")


@pytest.mark.parametrize("shape", [[1], [3], [], [3, 3]])
def test_c17_f4_that_ends_within_a_byte(tmp_path: Path, shape: list[int]) -> None:
    path = written(tmp_path, one("F4", shape, [0, 1], 1))
    assert "shape-invalid" in codes(header_of(path))
    assert not library_takes(path)


def test_c18_a_dtype_that_torch_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dtypes.supported("uint16")
    monkeypatch.delattr(torch, "uint16")
    assert not dtypes.supported("uint16")
    with pytest.raises(dtypes.UnsupportedDtypeError, match=r"uint16.*torch 2") as caught:
        dtypes.torch_dtype("uint16")
    assert torch.__version__ in str(caught.value)
    assert dtypes.numpy_dtype("uint16") == "<u2"
    assert not dtypes.supported("load")  # a name that torch has, but no dtype
    with pytest.raises(dtypes.UnsupportedDtypeError, match="F3_X"):
        dtypes.torch_dtype("F3_X")


def test_c13_an_unknown_dtype_keeps_its_bytes_in_the_manifest(tmp_path: Path) -> None:
    (tensor,) = header_of(written(tmp_path, one("F3_X", [4], [0, 4], 4))).tensors
    assert (tensor.dtype, tensor.nbytes) == ("F3_X", 4)


def test_truncation_says_expected_and_found(tmp_path: Path) -> None:
    path = tiny.write_tensors(tmp_path / "x.safetensors", {"a": ("U8", [9]), "b": ("U8", [100])})
    whole = path.stat().st_size
    os.truncate(path, whole - 50)
    (problem,) = header_of(path).problems
    assert f"{whole:,}" in problem.message
    assert f"{whole - 50:,}" in problem.message
    assert problem.tensor == "b"


def test_c08_says_how_many_bytes(tmp_path: Path) -> None:
    (problem,) = header_of(written(tmp_path, one("U8", [4], [0, 4], 20))).problems
    assert "16 bytes" in problem.message
    assert examine(tmp_path).tensor_bytes == 4


def test_lfs_pointer_says_what_to_do(tmp_path: Path) -> None:
    (problem,) = header_of(written(tmp_path, FAULTY["LFS pointer"][0])).problems
    assert "git lfs pull" in problem.message
    assert "4,999 bytes" in problem.message


@pytest.mark.parametrize("size", [99_993, 99_994, 100_000, 100_001])
def test_c37_reads_exactly_the_header(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, data = tiny.layout({"w": ("F32", [1024, 64])})
    text = json.dumps(header).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(tiny.raw_file(text, bytes(data), pad=size - len(text)))
    asked: list[tuple[int, int]] = []
    pread = os.pread

    def counting(fd: int, length: int, offset: int) -> bytes:
        asked.append((offset, length))
        return pread(fd, length, offset)

    monkeypatch.setattr(os, "pread", counting)
    found = header_of(path)
    assert not found.problems
    assert found.size == 8 + size
    assert asked == [(0, 8), (8, size)]
    same_as_library(path, found)


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny.write_tensors(tmp_path / "x.safetensors", {"w": ("U8", [5])})
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, n, offset: pread(fd, min(n, 3), offset))
    assert not header_of(path).problems


@pytest.mark.parametrize("name", ["a\x1b[31mred", "two\nlines", "rtl\u202etxt", "[bold]x", "\x07"])
def test_names_from_strangers_are_escaped_in_messages(name: str) -> None:
    raw = json.dumps({name: {"dtype": "F3_X", "shape": [1], "data_offsets": [0, 1]}}).encode()
    header = parse_header(raw, name="x", file_size=8 + len(raw) + 1)
    (problem,) = header.problems
    assert problem.tensor == name
    assert problem.message.isprintable()


def test_c35_a_big_endian_host_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.write_tensors(tmp_path / "x.safetensors", {"w": ("F16", [2])})
    assert not examine(tmp_path).errors
    monkeypatch.setattr(sys, "byteorder", "big")
    (problem,) = examine(tmp_path).errors
    assert problem.code == "byte-order"


def test_c35_the_numpy_view_reads_little_endian_bytes() -> None:
    value = np.array([1.5, -2.0], dtype="<f2").tobytes()
    assert np.frombuffer(value, dtypes.numpy_dtype("float16")).tolist() == [1.5, -2.0]
