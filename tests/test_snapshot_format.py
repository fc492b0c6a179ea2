"""The snapshot's header: what is written is read, and anything else is refused by name."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from loaders.checkpoint.read import examine
from loaders.checkpoint.snapshot_file import read_header
from loaders.snapshot.format import (
    ALIGN,
    HEAD,
    MAGIC,
    VERSION,
    Entry,
    Header,
    HeaderError,
    Layout,
    Made,
    Source,
    file_name,
    placed,
    room,
    to_bytes,
)
from loaders.snapshot.parse import head_of, parsed

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
    assert parsed(text, check, header.size) == header
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


def facts_of(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        _, _, _, length, _, _ = HEAD.unpack(file.read(HEAD.size))
        return json.loads(file.read(length))


def rewritten(path: Path, text: str | bytes, *, size: int | None = None, length: int | None = None):
    """The same file with another JSON text, its checksum right: only what it says is wrong."""
    data = path.read_bytes()
    raw = text.encode() if isinstance(text, str) else text
    first = -(-(HEAD.size + len(raw)) // ALIGN) * ALIGN
    raw = raw.ljust(first - HEAD.size)
    whole = len(data) if size is None else size
    check = xxhash.xxh3_64_intdigest(raw)
    head = HEAD.pack(MAGIC, VERSION, 0, len(raw) if length is None else length, check, whole)
    path.write_bytes((head + raw + data[first:]).ljust(len(data), b"\0")[: len(data)])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"dtype": "float7"}, "unsupported-dtype"),
        ({"dtype": "float4_e2m1fn_x2"}, "corrupt-header"),
        ({"dtype": 16}, "corrupt-header"),
        ({"dtype": "float32"}, "corrupt-header"),
        ({"nbytes": 31}, "corrupt-header"),
        ({"nbytes": -30}, "corrupt-header"),
        ({"nbytes": "30"}, "corrupt-header"),
        ({"nbytes": 1 << 80}, "corrupt-header"),
        ({"shape": [3, 6]}, "corrupt-header"),
        ({"shape": [-3, -5]}, "corrupt-header"),
        ({"shape": [3, 5.0]}, "corrupt-header"),
        ({"shape": ["3", "5"]}, "corrupt-header"),
        ({"shape": [True, 15]}, "corrupt-header"),
        ({"shape": [1 << 62, 1 << 62, 0], "nbytes": 0}, "corrupt-header"),
        ({"shape": [1] * 64 + [15]}, "corrupt-header"),
        ({"shape": "35"}, "corrupt-header"),
        ({"offset": 0}, "corrupt-header"),
        ({"offset": -4096}, "corrupt-header"),
        ({"offset": 4097}, "corrupt-header"),
        ({"offset": 4096}, "corrupt-header"),
        ({"offset": 1 << 40}, "corrupt-header"),
        ({"offset": 1 << 64}, "corrupt-header"),
        ({"offset": 8192.0}, "corrupt-header"),
        ({"offset": True}, "corrupt-header"),
        ({"xxh3": "0"}, "corrupt-header"),
        ({"xxh3": None}, "corrupt-header"),
        ({"of": 3}, "corrupt-header"),
        ({"of": [-1]}, "corrupt-header"),
        ({"name": ["v"]}, "corrupt-header"),
        ({"name": "w"}, "corrupt-header"),
        ({"more": 1}, "corrupt-header"),
    ],
)
def test_parameters_that_no_header_has(
    change: dict[str, object], code: str, tmp_path: Path
) -> None:
    path = written(tmp_path, header_of([entry(), entry("v")]))
    value = facts_of(path)
    value["parameters"][1] |= change
    rewritten(path, json.dumps(value))
    assert codes(path) == [code]
    assert not examine(path).tensors


@pytest.mark.parametrize(
    ("where", "change"),
    [
        ("layout", {"tp": 0}),
        ("layout", {"tp": "2"}),
        ("layout", {"tp": 2.0}),
        ("layout", {"tp": True}),
        ("layout", {"rank": 2}),
        ("layout", {"rank": -1}),
        ("layout", {"pp": 0}),
        ("layout", {"ep": 3}),
        ("layout", {"dp": 1}),
        ("layout", None),
        ("source", {"bytes": "9"}),
        ("source", {"bytes": -1}),
        ("source", {"content": "none"}),
        ("source", {"structure": 1}),
        ("source", {"name": None}),
        ("source", []),
        ("made", {"seconds": "1"}),
        ("made", {"seconds": -1.0}),
        ("made", {"torch": None}),
        ("processing", "middle"),
        ("processing", {}),
        ("device_layout", "sideways"),
        ("quantisation", 8),
        ("parameters", {}),
        ("parameters", [7]),
        ("parameters", [[]]),
    ],
)
def test_facts_that_no_header_has(where: str, change: object, tmp_path: Path) -> None:
    path = written(tmp_path, header_of([entry()]))
    value = facts_of(path)
    value[where] = {**value[where], **change} if isinstance(change, dict) and change else change
    rewritten(path, json.dumps(value))
    assert codes(path) == ["corrupt-header"]
    del value[where]
    rewritten(path, json.dumps(value))
    assert codes(path) == ["corrupt-header"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "7",
        '"text"',
        "{",
        b"\xff\xfe",
        "[" * 100_000,
        '{"layout":' * 1000,
        "{'layout': 1}",
        '{"layout": NaN}',
        '{"tp": 1' + "0" * 5000 + "}",
        '{"layout": "\\ud800"}',
    ],
)
def test_texts_that_are_no_header(text: str | bytes, tmp_path: Path) -> None:
    path = written(tmp_path, header_of([entry()]))
    path.write_bytes(path.read_bytes().ljust(1 << 20, b"\0"))
    rewritten(path, text)
    assert codes(path) == ["corrupt-header"]


@pytest.mark.parametrize("key", ["layout", "parameters", "tp", "content", "offset"])
def test_a_key_that_stands_twice(key: str, tmp_path: Path) -> None:
    """Python's JSON takes the last one; another reader may take the first."""
    path = written(tmp_path, header_of([entry()]))
    text = json.dumps(facts_of(path))
    place = text.index(f'"{key}":')
    rewritten(path, f'{text[:place]}"{key}": 1, {text[place:]}')
    (problem,) = examine(path).errors
    assert problem.code == "corrupt-header"
    assert f"{key} stands in it twice" in problem.message


@pytest.mark.parametrize("length", [0, 1, 4096, 2**32, 2**63, 2**64 - 1])
def test_headers_of_other_lengths(length: int, tmp_path: Path) -> None:
    """Nothing of that size is read or reserved."""
    path = written(tmp_path, header_of([entry()]))
    rewritten(path, json.dumps(facts_of(path)), length=length)
    assert codes(path) == ["corrupt-header"]


@pytest.mark.parametrize("more", [-ALIGN, ALIGN, 10 * ALIGN])
def test_a_file_that_ends_elsewhere_than_its_parameters(more: int, tmp_path: Path) -> None:
    path = written(tmp_path, header_of([entry(shape=(3000, 5))]))
    text = json.dumps(facts_of(path))
    data = path.read_bytes()
    path.write_bytes(data.ljust(len(data) + more, b"\0")[: len(data) + more])
    rewritten(path, text)
    assert codes(path) == ["corrupt-header"]


def test_every_bit_of_the_head_counts(tmp_path: Path) -> None:
    path = written(tmp_path, header_of([entry()]))
    data = path.read_bytes()
    for bit in range(8 * HEAD.size):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        assert codes(path), bit
        assert not examine(path).tensors
    path.write_bytes(data)
    assert not codes(path)


def test_a_world_of_any_size_is_no_work(tmp_path: Path) -> None:
    """Ranks that lack are named, not counted one by one."""
    most = 2**62
    for rank in (0, most - 1):
        written(tmp_path, header_of([entry()], layout=Layout(tp=most, rank=rank)))
    (problem,) = examine(tmp_path).problems
    assert problem.code == "ranks-missing"
    assert f"1, 2, 3, 4, 5 and {most - 7} more" in problem.message


def test_links_are_followed_and_dangling_ones_named(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "s").mkdir()
    path = written(tmp_path / "blobs", header_of([entry()]))
    link = tmp_path / "s" / path.name
    link.symlink_to(path)
    assert codes(tmp_path / "s") == []
    path.unlink()
    assert codes(tmp_path / "s") == ["blob-missing"]
    link.unlink()
    link.symlink_to(link)
    assert codes(tmp_path / "s") == ["blob-missing"]
    link.unlink()
    link.mkdir()
    assert codes(tmp_path / "s") == ["not-a-file"]


def test_one_name_twice(tmp_path: Path) -> None:
    assert codes(written(tmp_path, header_of([entry(), entry()]))) == ["corrupt-header"]


def test_a_rank_under_anothers_name(tmp_path: Path) -> None:
    path = written(tmp_path, header_of([entry()]))
    other = path.rename(tmp_path / "rank-00000-of-00002.snapshot")
    assert codes(other) == ["rank-mismatch"]


def test_no_parameter_at_all(tmp_path: Path) -> None:
    assert codes(written(tmp_path, header_of([]))) == ["no-tensors"]
