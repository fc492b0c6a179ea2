"""The snapshot's header: what is written is read, and anything else is refused by name."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.checkpoint.read import examine
from loaders.checkpoint.snapshot_file import read_header
from loaders.snapshot.format import (
    ALIGN,
    HEAD,
    Entry,
    Header,
    HeaderError,
    Layout,
    Made,
    Source,
    file_name,
    head_of,
    parsed,
    placed,
    room,
    to_bytes,
)

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
SHAPES = st.lists(st.integers(0, 50), max_size=3).map(tuple)


def header_of(entries: list[Entry], **changed: object) -> Header:
    blank = Header(
        layout=Layout(tp=2, rank=1),
        processing="pre",
        device_layout="plain",
        quantisation=None,
        source=Source(
            name="m", format="pt", files=1, bytes=9, tensors=2, structure="0" * 32, content="1" * 32
        ),
        made=Made(coldload="0", torch="2", seconds=0.0),
        parameters=tuple(entries),
    )
    first = room(blank)
    offsets, size = placed([entry.nbytes for entry in entries], first)
    placed_entries = tuple(
        replace(entry, offset=offset) for entry, offset in zip(entries, offsets, strict=True)
    )
    return replace(blank, parameters=placed_entries, size=size, **changed)


def entry(name: str = "w", shape: tuple[int, ...] = (3, 5), of: tuple[int, ...] | None = None):
    nbytes = 2
    for length in shape:
        nbytes *= length
    return Entry(name=name, dtype="bfloat16", shape=shape, offset=0, nbytes=nbytes, of=of)


@given(st.dictionaries(NAMES, SHAPES, max_size=8), st.floats(0, 1e12))
def test_a_header_survives_and_its_tensors_lie_apart_from_pages_on(
    tensors: dict[str, tuple[int, ...]], seconds: float
) -> None:
    header = header_of([entry(name, shape) for name, shape in tensors.items()])
    first = room(header)
    assert first % ALIGN == header.size % ALIGN == 0
    # what is known only at the end must still fit into what was reserved at the beginning
    header = replace(header, made=replace(header.made, seconds=round(seconds, 3)))
    data = to_bytes(header, first)
    assert len(data) == first
    length, check = head_of(data[: HEAD.size], header.size)
    text = data[HEAD.size : HEAD.size + length]
    assert parsed(text, check, json.loads(text), header.size) == header
    ends = first
    for one in header.parameters:
        assert one.offset % ALIGN == 0
        assert one.offset >= ends
        ends = one.offset + one.nbytes
    assert ends <= header.size


def written(folder: Path, header: Header) -> Path:
    path = folder / file_name(header.layout)
    path.write_bytes(to_bytes(header, room(header)).ljust(header.size, b"\0"))
    return path


def codes(path: Path) -> list[str]:
    return [problem.code for problem in examine(path).errors]


def test_a_sound_file_has_no_fault(tmp_path: Path) -> None:
    path = written(tmp_path, header_of([entry(), entry("v", (), None)]))
    checkpoint = examine(path)
    assert not checkpoint.problems
    assert checkpoint.facts is not None
    assert checkpoint.facts["layout"] == {"tp": 2, "pp": 1, "ep": 1, "rank": 1}
    assert [spec.shape for spec in checkpoint.tensors] == [(3, 5), ()]


@pytest.mark.parametrize("kept", [0, 1, 8, 39, 40, 1000, 4096, 8191])
def test_half_written_wherever_it_ends(kept: int, tmp_path: Path) -> None:
    path = written(tmp_path, header_of([entry()]))
    with path.open("r+b") as file:
        file.truncate(kept)
    assert codes(path)[0] in {"half-written", "not-weights"}
    assert not examine(path).tensors
    with pytest.raises(HeaderError):
        read_header(str(path))


def test_half_written_with_its_whole_size_and_no_header_yet(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000-of-00001.snapshot"
    path.write_bytes(b"\0" * 4096 + b"\7" * 4096)
    (problem,) = examine(path).errors
    assert problem.code == "half-written"
    assert "make it again" in problem.message


@pytest.mark.parametrize("version", [0, 2, 2**32 - 1])
def test_another_version(version: int, tmp_path: Path) -> None:
    path = written(tmp_path, header_of([entry()]))
    data = bytearray(path.read_bytes())
    data[8:12] = struct.pack("<I", version)
    path.write_bytes(data)
    (problem,) = examine(path).errors
    assert problem.code == "other-version"
    assert str(version) in problem.message


def test_longer_than_written(tmp_path: Path) -> None:
    path = written(tmp_path, header_of([entry()]))
    path.write_bytes(path.read_bytes() + b"more")
    assert codes(path) == ["size-mismatch"]


@pytest.mark.parametrize("at", [40, 60, 100, 300])
def test_any_changed_byte_of_the_text_is_found(at: int, tmp_path: Path) -> None:
    path = written(tmp_path, header_of([entry()]))
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    assert codes(path) == ["corrupt-header"]


@pytest.mark.parametrize("foreign", [b"{}", b"PK\3\4 something else", b"<html>", b"COLDSNAQ" * 9])
def test_something_else_under_its_name(foreign: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rank-00000-of-00001.snapshot"
    path.write_bytes(foreign)
    assert codes(path) == ["not-weights"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"dtype": "float7"}, "unsupported-dtype"),
        ({"nbytes": 31}, "corrupt-header"),
        ({"shape": (3, 6)}, "corrupt-header"),
        ({"offset": 0}, "corrupt-header"),
        ({"offset": 4097}, "corrupt-header"),
        ({"offset": 1 << 40}, "corrupt-header"),
    ],
)
def test_headers_that_contradict_themselves(
    change: dict[str, object], code: str, tmp_path: Path
) -> None:
    header = header_of([entry(), entry("v")])
    last = replace(header.parameters[1], **change)
    path = written(tmp_path, replace(header, parameters=(header.parameters[0], last)))
    assert codes(path) == [code]


def test_one_name_twice(tmp_path: Path) -> None:
    assert codes(written(tmp_path, header_of([entry(), entry()]))) == ["corrupt-header"]


@pytest.mark.parametrize("layout", [Layout(tp=2, rank=2), Layout(tp=0), Layout(rank=-1)])
def test_a_rank_that_there_is_not(layout: Layout, tmp_path: Path) -> None:
    path = written(tmp_path, header_of([entry()], layout=Layout()))
    header = header_of([entry()], layout=layout)
    path.write_bytes(to_bytes(header, room(header)).ljust(header.size, b"\0"))
    assert codes(path) == ["corrupt-header"]


def test_a_rank_under_anothers_name(tmp_path: Path) -> None:
    path = written(tmp_path, header_of([entry()]))
    other = path.rename(tmp_path / "rank-00000-of-00002.snapshot")
    assert codes(other) == ["rank-mismatch"]


def test_no_parameter_at_all(tmp_path: Path) -> None:
    assert codes(written(tmp_path, header_of([]))) == ["no-tensors"]
