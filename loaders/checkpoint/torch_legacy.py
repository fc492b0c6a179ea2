"""The legacy form of torch.save (before torch 1.6): pickles one after another, then raw storages.

Magic number, protocol, the writer's type sizes, the object, the list of storage keys, and for each
key an 8-byte count of elements with its bytes (little-endian on every machine).
"""

from __future__ import annotations

import struct
from typing import BinaryIO

from loaders.checkpoint.text import shown
from loaders.checkpoint.torch_pickle import unpickle
from loaders.checkpoint.torch_values import RefusedError, Storage, width
from loaders.checkpoint.torch_zip import Place

_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001


def read_legacy(file: BinaryIO, size: int) -> tuple[object, dict[str, Place]]:
    """The saved object, with descriptions for tensors, and each storage's place by its key.
    RefusedError with the problem if the file of `size` bytes is damaged or another pickle."""
    file.seek(0)
    try:
        magic, _ = unpickle(file)
    except RefusedError as error:
        if error.code == "truncated-pickle" and size < 64:
            raise
        raise RefusedError(
            "not-weights",
            f"a pickle, but none of torch.save, which begins with its magic number ({error})",
        ) from error
    if magic != _MAGIC_NUMBER:
        raise RefusedError(
            "not-weights",
            f"a pickle of a {type(magic).__name__}, not written by torch.save: load it where it "
            "came from and save a dict of tensors with torch.save",
        )
    protocol, _ = unpickle(file)
    if protocol != _PROTOCOL:
        raise RefusedError(
            "unsupported-pickle", f"legacy torch.save protocol {shown(protocol)}, known is 1001"
        )
    unpickle(file)  # type sizes and byte order of the writer: torch ignores both
    saved, storages = unpickle(file)
    keys, _ = unpickle(file)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise RefusedError("corrupt-pickle", "no list of storage keys behind the object's pickle")
    return saved, _places(file, size, keys, storages)


def _places(
    file: BinaryIO, size: int, keys: list[str], storages: dict[str, Storage]
) -> dict[str, Place]:
    places: dict[str, Place] = {}
    at = file.tell()
    for number, key in enumerate(keys):
        storage = storages.get(key)
        if storage is None:
            raise RefusedError(
                "corrupt-pickle", f"storage {shown(key)} is listed, but nothing refers to it"
            )
        nbytes = storage.numel * (width(storage.dtype or "uint8") or _packed(storage.dtype))
        if at + 8 + nbytes > size:
            raise RefusedError(
                "truncated-file",
                f"storage {shown(key)} ends at byte {at + 8 + nbytes:,}, but the file has {size:,} "
                f"bytes; {len(keys) - number} of {len(keys)} storages are cut off: fetch it again",
            )
        file.seek(at)
        (count,) = struct.unpack("<q", file.read(8))
        if count != storage.numel:
            raise RefusedError(
                "storage-size",
                f"storage {shown(key)} has {storage.numel} elements by the pickle and {count} "
                f"at byte {at:,}: damaged; fetch it again",
            )
        places[key] = Place(offset=at + 8, nbytes=nbytes)
        at += 8 + nbytes
    return places


def _packed(dtype: str | None) -> int:
    """Bytes of an element of the quantised types; those below a byte are packed into bytes."""
    return 4 if dtype == "qint32" else 1
