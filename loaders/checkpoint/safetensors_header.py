"""The header of a safetensors file: 8 bytes of length, that many bytes of JSON, then the data.

Our own parser, because the library's errors name neither file nor tensor nor sizes, and because a
manifest must list what is wrong instead of stopping. It accepts and refuses what safetensors 0.8
accepts and refuses, with one exception: the library lets the same name stand twice when both
entries are equal, here every repeated name is a fault.

Problem codes of a file's header:
    empty-file, header-truncated, header-too-large, truncated-file, trailing-bytes: its size
    lfs-pointer, not-weights: it is something else
    header-invalid, metadata-invalid, duplicate-key: its JSON
    offsets-invalid, shape-invalid, size-mismatch, overlap, hole, dtype-unknown: a tensor in it
    dtype-unloadable: sound for the library, but no torch tensor can be made of it
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from loaders.checkpoint import dtypes, strict_json
from loaders.checkpoint.manifest import Problem, TensorSpec
from loaders.checkpoint.regular import opened, read_at
from loaders.checkpoint.sniff import HEAD_BYTES, foreign
from loaders.checkpoint.text import count, listed, quoted, shown

LENGTH_BYTES: Final = 8
MAX_HEADER: Final = 100_000_000  # the reference's limit; what is larger is no header
METADATA: Final = "__metadata__"
_FIELDS = ("dtype", "shape", "data_offsets")


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """`size` is where the data starts (8 + N bytes), 0 if there is no header. `tensors` are in the
    order of their offsets. `metadata` is what stands under __metadata__, None if absent or null."""

    size: int
    tensors: tuple[TensorSpec, ...]
    problems: tuple[Problem, ...]
    metadata: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One tensor's entry, fields of the right kinds, nothing compared yet."""

    name: str
    code: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: str, name: str) -> Header:
    """Reads 8 + N bytes of the file and nothing else (512 more where those make no sense).

    `name` is what the file is called in the manifest. Never raises for what the file holds: that
    is in `problems`. OSError if it can't be opened or read.
    """
    with opened(path) as (fd, size):
        return header_of(lambda offset, length: read_at(fd, offset, length), size, name)


def header_of(read: Callable[[int, int], bytes], size: int, name: str) -> Header:
    """The header of a file of `size` bytes, wherever it lies. `read(offset, length)` returns bytes
    of it, fewer only at its end; it is asked for 8, then N (512 more where those make no sense).
    """
    start = read(0, LENGTH_BYTES)
    length = int.from_bytes(start, "little")
    whole = len(start) == LENGTH_BYTES
    if whole and length <= MAX_HEADER and LENGTH_BYTES + length <= size:
        header = parse_header(read(LENGTH_BYTES, length), name=name, file_size=size)
        if header.tensors or not any(p.code == "header-invalid" for p in header.problems):
            return header
    else:
        header = _nothing(_size_problem(name, size, length, whole))
    other = foreign(read(0, HEAD_BYTES), size)
    if other is None:
        return header
    return _nothing(Problem(code=other[0], file=name, message=f"{shown(name)}: {other[1]}"))


def parse_header(raw: bytes, *, name: str, file_size: int) -> Header:
    """The manifest of one file from its N bytes of JSON. `file_size` counts the whole file."""
    size = LENGTH_BYTES + len(raw)
    where = shown(name)

    def problem(code: str, message: str, tensor: str | None = None) -> Problem:
        at = f"{where}: " if tensor is None else f"{where}: tensor {quoted(tensor)}: "
        return Problem(code=code, file=name, tensor=tensor, message=at + message)

    try:
        root = strict_json.loads(raw)
    except strict_json.StrictJsonError as error:
        text = f"the header of {count(len(raw), 'byte')} is not valid JSON: {error}"
        return _nothing(problem("header-invalid", text), size)
    if not isinstance(root, dict):
        text = f"the header must be a JSON object, it is {_kind(root)}"
        return _nothing(problem("header-invalid", text), size)

    problems: list[Problem] = []
    pairs = list(root.items())
    if isinstance(root, strict_json.Repeated):
        pairs = root.pairs
        for key in root.keys_repeated:
            message = "the key stands more than once in the header; write the file again"
            problems.append(problem("duplicate-key", message, key))

    metadata: Mapping[str, str] | None = None
    entries: list[_Entry] = []
    complete = True  # whether every entry says where its bytes are
    for key, value in pairs:
        if key == METADATA:
            fault = _metadata_fault(value)
            if fault is not None:
                problems.append(problem("metadata-invalid", fault))
            metadata = value if fault is None else None
            if isinstance(value, strict_json.Repeated) and fault is None:
                text = f"{METADATA} repeats the key {listed(value.keys_repeated)}: the last counts"
                warning = problem("duplicate-key", text)
                problems.append(_as_warning(warning))
            continue
        entry = _entry(key, value)
        if isinstance(entry, _Entry):
            entries.append(entry)
        else:
            problems.append(problem(*entry, key))
            complete = False

    entries.sort(key=lambda entry: (entry.begin, entry.end, entry.name))
    for entry in entries:
        problems.extend(problem(code, text, entry.name) for code, text in _faults(entry))
    if complete:
        problems.extend(
            problem(code, text, tensor)
            for code, text, tensor in _coverage(entries, size, file_size)
        )
    tensors = {entry.name: _spec(entry, name, size) for entry in entries}
    return Header(
        size=size, tensors=tuple(tensors.values()), problems=tuple(problems), metadata=metadata
    )


def _entry(key: str, value: Any) -> _Entry | tuple[str, str]:
    """The entry, or (problem code, message)."""
    if isinstance(value, list) and len(value) == len(_FIELDS):
        value = dict(zip(_FIELDS, value, strict=True))  # the reference takes a bare list too
    if not isinstance(value, dict):
        return "header-invalid", f"its entry must be an object, it is {_kind(value)}"
    if isinstance(value, strict_json.Repeated):
        twice = [field for field in value.keys_repeated if field in _FIELDS]
        if twice:
            return "duplicate-key", f"its entry repeats {listed(twice)}"
    missing = [field for field in _FIELDS if field not in value]
    if missing:
        return "header-invalid", f"its entry lacks {listed(missing)}"
    if len(value) > len(_FIELDS):
        for extra in value.keys() - set(_FIELDS):
            fault = strict_json.fault_of_ignored(value[extra], depth=3)
            if fault is not None:
                return "header-invalid", f"its entry's {quoted(extra)}: {fault}"
    code, shape, offsets = (value[field] for field in _FIELDS)
    if isinstance(code, dict) and list(code.values()) == [None]:
        code = next(iter(code))  # {"F32": null}: another spelling that the reference takes
    if not isinstance(code, str):
        return "header-invalid", f"dtype must be a string, it is {_kind(code)}"
    if not (isinstance(shape, list) and all(_is_size(dim) for dim in shape)):
        return "shape-invalid", (
            f"shape must be a list of whole numbers from 0 to 2^64-1, found {_brief(shape)}"
        )
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(map(_is_size, offsets))):
        return "offsets-invalid", (
            "data_offsets must be two whole numbers from 0 to 2^64-1, "
            f"begin and end, found {_brief(offsets)}"
        )
    begin, end = offsets
    if begin > end:
        return "offsets-invalid", f"data_offsets [{begin}, {end}] end before they begin"
    return _Entry(name=key, code=code, shape=tuple(shape), begin=begin, end=end)


def _faults(entry: _Entry) -> list[tuple[str, str]]:
    """What is wrong with one entry by itself: its dtype, and shape against bytes."""
    row = dtypes.BY_CODE.get(entry.code)
    if row is None:
        known = ", ".join(dtypes.BY_CODE)
        text = f"dtype {quoted(entry.code)} is not known to the format, which has {known}"
        return [("dtype-unknown", text)]
    nbytes = entry.end - entry.begin
    elements = 1
    for dim in entry.shape:
        elements *= dim
        if elements > strict_json.U64_MAX:
            return [("shape-invalid", f"shape {_brief(entry.shape)} overflows 64 bits")]
    bits = elements * row.bits
    if bits > strict_json.U64_MAX:
        return [("shape-invalid", f"shape {_brief(entry.shape)} of {row.code} overflows 64 bits")]
    if bits % 8:
        text = f"shape {_brief(entry.shape)} of {row.code} ends within a byte ({bits} bits)"
        return [("shape-invalid", text)]
    if bits // 8 != nbytes:
        return [
            (
                "size-mismatch",
                f"{row.code} {_brief(entry.shape)} takes {count(bits // 8, 'byte')}, but "
                f"data_offsets [{entry.begin}, {entry.end}] hold {nbytes:,}",
            )
        ]
    if row.itemsize is None:
        return [("dtype-unloadable", f"dtype {row.code} has no counterpart in torch")]
    if row.packed > 1 and (not entry.shape or entry.shape[-1] % row.packed):
        return [
            (
                "dtype-unloadable",
                f"{row.code} {_brief(entry.shape)}: torch packs {row.packed} values in a byte "
                f"along the last dimension, which must be a multiple of {row.packed}",
            )
        ]
    return []


def _coverage(
    entries: list[_Entry], header_size: int, file_size: int
) -> list[tuple[str, str, str | None]]:
    """(code, message, tensor) for bytes that belong to two tensors, to none, or aren't there.
    `entries` are sorted by offset."""
    found: list[tuple[str, str, str | None]] = []
    reached, last = 0, None
    for entry in entries:
        if last is not None and (entry.name, entry.begin, entry.end, entry.shape) == (
            last.name,
            last.begin,
            last.end,
            last.shape,
        ):
            continue  # the very same entry written twice: told as a repeated key
        span = f"data_offsets [{entry.begin}, {entry.end}]"
        if entry.begin < reached:
            other = quoted(last.name) if last is not None else "another"
            text = f"{span} overlap the bytes of {other}, which end at {reached}"
            found.append(("overlap", text, entry.name))
        elif entry.begin > reached:
            gap = count(entry.begin - reached, "byte")
            found.append(("hole", f"{span} leave {gap} before them to no tensor", entry.name))
        if entry.end >= reached:
            reached, last = entry.end, entry
    data = file_size - header_size
    if reached > data:
        cut = [entry.name for entry in entries if entry.end > data]
        text = (
            f"the file is cut short: its header promises {header_size + reached:,} bytes, it has "
            f"{file_size:,} ({reached - data:,} are missing, from {listed(cut, 3)}); "
            "copy or download it again"
        )
        found.append(("truncated-file", text, cut[0]))
    elif reached < data:
        text = (
            f"{count(data - reached, 'byte')} after the last tensor belong to no tensor: expected "
            f"a file of {header_size + reached:,} bytes, found {file_size:,}; "
            "the safetensors library refuses such a file"
        )
        found.append(("trailing-bytes", text, None))
    return found


def _spec(entry: _Entry, file: str, header_size: int) -> TensorSpec:
    row = dtypes.BY_CODE.get(entry.code)
    shape = entry.shape
    if row is not None and row.packed > 1 and shape and shape[-1] % row.packed == 0:
        shape = (*shape[:-1], shape[-1] // row.packed)
    return TensorSpec(
        name=entry.name,
        dtype=entry.code if row is None else row.name,
        shape=shape,
        file=file,
        offset=header_size + entry.begin,
        nbytes=entry.end - entry.begin,
    )


def _size_problem(name: str, size: int, length: int, whole: bool) -> Problem:
    where = shown(name)
    if size == 0:
        code, text = "empty-file", "the file is empty (0 bytes); copy or download it again"
    elif not whole:
        code = "header-truncated"
        text = f"{count(size, 'byte')}, but the header's length alone takes {LENGTH_BYTES}"
    elif length > MAX_HEADER:
        code = "header-too-large"
        text = (
            f"the first 8 bytes promise a header of {length:,} bytes, more than the "
            f"{MAX_HEADER:,} allowed: this is no safetensors file, or its start is damaged"
        )
    else:
        code = "header-truncated"
        text = (
            f"the file is cut within its header: expected at least {LENGTH_BYTES + length:,} "
            f"bytes, found {size:,}; copy or download it again"
        )
    return Problem(code=code, file=name, message=f"{where}: {text}")


def _metadata_fault(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        return f"{METADATA} must be an object of strings, it is {_kind(value)}"
    pairs = value.pairs if isinstance(value, strict_json.Repeated) else value.items()
    wrong = [(key, item) for key, item in pairs if not isinstance(item, str)]
    if not wrong:
        return None
    key, item = wrong[0]
    return (
        f"{METADATA} may hold strings only, but {quoted(key)} is {_kind(item)}: {_brief(item)}; "
        "the safetensors library refuses such a file"
    )


def _nothing(problem: Problem, size: int = 0) -> Header:
    return Header(size=size, tensors=(), problems=(problem,))


def _as_warning(problem: Problem) -> Problem:
    return Problem(
        code=problem.code, file=problem.file, message=problem.message, severity="warning"
    )


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= strict_json.U64_MAX  # bool is no number here


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    if value is None:
        return "null"
    return next((text for kind, text in names.items() if isinstance(value, kind)), "a number")


def _brief(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_word(item)[:30] for item in value[:8])}{', …' * (len(value) > 8)}]"
    return _word(value)[:60]


def _word(value: Any) -> str:
    return json.dumps(value) if value is None or isinstance(value, bool) else shown(value)
