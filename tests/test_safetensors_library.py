"""The header reader agrees with the library on what hypothesis makes up."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loaders.checkpoint.safetensors_header import parse_header
from tests import tiny
from tests.tiny_headers import header_of, library_takes, same_as_library

# -- agreement with the library on what hypothesis makes up --------------------------------------

_NAMES = st.text(max_size=6) | st.sampled_from(["a", "b", "__metadata__", "model.w"])
_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**65) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@st.composite
def sound_files(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    names = draw(st.lists(_NAMES.filter(lambda n: n != "__metadata__"), unique=True, max_size=5))
    shapes = st.lists(st.integers(0, 4), max_size=3)
    tensors: dict[str, tuple[str, list[int]]] = {}
    for name in names:
        code = draw(st.sampled_from(sorted(tiny.BITS)))
        shape = draw(shapes)
        elements = int(np.prod(shape)) if shape else 1
        if elements * tiny.BITS[code] % 8:
            code = "U8"
        tensors[name] = (code, shape)
    header, size = tiny.layout(tensors)
    if draw(st.booleans()):
        header["__metadata__"] = draw(
            st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2)
        )
    order = draw(st.permutations(list(header)))
    return {name: header[name] for name in order}, size


def agree(tmp: Path, content: bytes) -> None:
    path = tmp / "x.safetensors"
    path.write_bytes(content)
    header = header_of(path)
    refused = {
        problem.code
        for problem in header.problems
        if problem.severity == "error" and problem.code != "dtype-unloadable"
    }
    if library_takes(path):
        # The one thing that is stricter here: equal entries under one name.
        assert refused <= {"duplicate-key"}, header.problems
        same_as_library(path, header)
    else:
        assert refused


@settings(max_examples=150, deadline=None)
@given(made=sound_files())
def test_agrees_with_the_library_on_sound_files(
    made: tuple[dict[str, Any], int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    header, size = made
    folder = tmp_path_factory.getbasetemp()
    path = folder / "x.safetensors"
    path.write_bytes(tiny.raw_file(header, bytes(i % 251 for i in range(size))))
    assert library_takes(path)
    agree(folder, path.read_bytes())


@settings(max_examples=300, deadline=None)
@given(made=sound_files(), data=st.data())
def test_agrees_with_the_library_on_mutated_headers(
    made: tuple[dict[str, Any], int], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    header, size = made
    for _ in range(data.draw(st.integers(1, 2))):
        name = data.draw(st.sampled_from(sorted(header)) if header else _NAMES)
        kind = data.draw(st.sampled_from(["field", "entry", "offset", "shape", "add", "drop"]))
        entry = header.get(name)
        if kind == "entry" or not isinstance(entry, dict) or "shape" not in entry:
            header[name] = data.draw(_JUNK)
        elif kind == "field":
            entry[data.draw(st.sampled_from(["dtype", "shape", "data_offsets"]))] = data.draw(_JUNK)
        elif kind == "offset":
            entry["data_offsets"] = data.draw(st.lists(st.integers(-1, size + 2), max_size=3))
        elif kind == "shape":
            entry["shape"] = data.draw(st.lists(st.integers(-1, 2**64), max_size=4))
        elif kind == "add":
            entry[data.draw(st.text(max_size=3))] = data.draw(_JUNK)
        else:
            header.pop(name)
    size = max(0, size + data.draw(st.sampled_from([0, 0, 0, -1, 1, 16])))
    agree(tmp_path_factory.getbasetemp(), tiny.raw_file(header, bytes(size)))


_BASE = tiny.raw_file(
    {
        "__metadata__": {"format": "pt"},
        "a-0": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
        "b": {"dtype": "U8", "shape": [], "data_offsets": [8, 9]},
    },
    b"123456789",
)


@settings(max_examples=500, deadline=None)
@given(
    at=st.integers(0, len(_BASE) - 1),
    cut=st.integers(0, 4),
    put=st.binary(max_size=4)
    | st.sampled_from(
        [b'"', b"{", b"}", b",", b"-0", b"00", b"1e0", b"\\u", b" ", b"null", b"9" * 25]
    ),
    fix_length=st.booleans(),
)
@example(at=120, cut=0, put=b"", fix_length=True)
def test_agrees_with_the_library_on_mutated_bytes(
    at: int, cut: int, put: bytes, fix_length: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = _BASE[:at] + put + _BASE[at + cut :]
    if fix_length and at >= 8:
        old = int.from_bytes(_BASE[:8], "little")
        if at + cut < 8 + old:
            content = struct.pack("<Q", old + len(put) - cut) + content[8:]
    agree(tmp_path_factory.getbasetemp(), content)


@pytest.mark.parametrize(
    ("offsets", "said"),
    [("null", "found null"), ("[true, 4]", "[true, 4]"), (f"[0, {'9' * 5000}]", "4,300 digits")],
)
def test_c12_what_was_found_is_said_as_it_stands(offsets: str, said: str) -> None:
    raw = f'{{"w": {{"dtype": "U8", "shape": [4], "data_offsets": {offsets}}}}}'.encode()
    (problem,) = parse_header(raw, name="x", file_size=8 + len(raw) + 4).problems
    assert said in problem.message
    assert "sys." not in problem.message
