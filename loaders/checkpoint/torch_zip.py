"""The zip form of torch.save (torch 1.6 on): where the pickle and each storage lie in the file.

`<name>/data.pkl` is the pickle, `<name>/data/<key>` one storage each, stored as they are, so that
a storage can be mapped. Only the archive's directory and the local headers are read.
"""

from __future__ import annotations

import struct
import sys
import zipfile
import zlib
from dataclasses import dataclass
from typing import BinaryIO

from loaders.checkpoint.text import listed, shown
from loaders.checkpoint.torch_values import RefusedError

MAGIC = b"PK\x03\x04"
MAX_PICKLE = 512 << 20
_LOCAL = struct.Struct("<4s22xHH")  # signature, ..., length of the name, of the extra field


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a storage's bytes lie in the file: `offset` from its start, `nbytes` of them."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """`pickle` holds the bytes of data.pkl; `places` is each storage by its key; `swapped` says
    that the storages are big-endian."""

    pickle: bytes
    places: dict[str, Place]
    swapped: bool


def read_archive(file: BinaryIO, size: int) -> Archive:
    """The layout of a zip torch file of `size` bytes. RefusedError with the problem if it is none,
    damaged, compressed, or a TorchScript archive."""
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, ValueError, struct.error, NotImplementedError) as error:
        raise RefusedError(
            "truncated-file",
            f"a zip file without a readable directory at its end ({size:,} bytes; {error}): "
            "cut off or damaged; fetch it again",
        ) from error
    records = archive.infolist()
    top = records[0].filename.partition("/")[0] if records else ""
    names = {record.filename: record for record in records}
    if len(names) != len(records):
        raise RefusedError("duplicate-record", "the zip archive holds two records of one name")
    if f"{top}/constants.pkl" in names or any(n.startswith(f"{top}/code/") for n in names):
        raise RefusedError(
            "torchscript",
            "a TorchScript archive (torch.jit.save), which torch.load(weights_only=True) refuses: "
            "save torch.jit.load(path).state_dict() with torch.save",
        )
    if f"{top}/data.pkl" not in names:
        raise RefusedError(
            "not-weights",
            f"a zip archive, but none of torch.save: no data.pkl in it, but {listed(names)}",
        )
    record = names[f"{top}/data.pkl"]
    if record.file_size > MAX_PICKLE:
        raise RefusedError(
            "pickle-too-large",
            f"its pickle has {record.file_size:,} bytes; that of a state dict has some megabytes",
        )
    places = {}
    prefix = f"{top}/data/"
    for name, info in names.items():
        if name.startswith(prefix):
            places[name.removeprefix(prefix)] = _place(file, info, size)
    _refuse_overlaps(places)
    return Archive(
        pickle=_content(file, record, size),
        places=places,
        swapped=_swapped(file, names.get(f"{top}/byteorder"), size),
    )


def _place(file: BinaryIO, record: zipfile.ZipInfo, size: int) -> Place:
    name = shown(record.filename)
    if record.compress_type != zipfile.ZIP_STORED or record.flag_bits & 1:
        raise RefusedError(
            "compressed-record",
            f"record {name} is compressed or encrypted; torch.save stores records plainly (was the "
            "archive packed again?): save it again with torch.save",
        )
    inside = 0 <= record.header_offset < size  # damaged, it can be a number that no file has
    file.seek(record.header_offset if inside else size)
    header = file.read(_LOCAL.size)
    if len(header) != _LOCAL.size or not header.startswith(MAGIC):
        raise RefusedError(
            "corrupt-archive",
            f"no record header for {name} at byte {record.header_offset}: damaged; fetch it again",
        )
    _, name_length, extra_length = _LOCAL.unpack(header)
    offset = record.header_offset + _LOCAL.size + name_length + extra_length
    if offset + record.file_size > size:
        raise RefusedError(
            "truncated-file",
            f"record {name} ends at byte {offset + record.file_size:,}, but the file has {size:,} "
            "bytes: fetch it again",
        )
    return Place(offset=offset, nbytes=record.file_size)


def _content(file: BinaryIO, record: zipfile.ZipInfo, size: int) -> bytes:
    place = _place(file, record, size)
    file.seek(place.offset)
    data = file.read(place.nbytes)
    if zlib.crc32(data) != record.CRC:
        raise RefusedError(
            "corrupt-archive",
            f"the checksum of {shown(record.filename)} is wrong: damaged; fetch it again",
        )
    return data


def _refuse_overlaps(places: dict[str, Place]) -> None:
    end, before = 0, ""
    for key, place in sorted(places.items(), key=lambda item: item[1].offset):
        if place.offset < end:
            raise RefusedError(
                "overlapping-storages",
                f"storages {shown(before)} and {shown(key)} lie over each other in the file",
            )
        end, before = place.offset + place.nbytes, key


def _swapped(file: BinaryIO, record: zipfile.ZipInfo | None, size: int) -> bool:
    """Files without the record (before torch 2.1) are little-endian, as torch takes them."""
    order = b"little" if record is None else _content(file, record, size)
    if order not in (b"little", b"big"):
        raise RefusedError(
            "byte-order", f"its byteorder record says {shown(order[:20])}, neither little nor big"
        )
    if order == b"big" and sys.byteorder == "little":
        raise RefusedError(
            "byte-order",
            "written on a big-endian machine (its byteorder record); this host is little-endian, "
            "and timing would include swapping every byte: torch.load and torch.save it here once",
        )
    return order == b"big"
