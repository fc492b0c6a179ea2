"""What a file is when it isn't what its name says: pointer files, error pages, other formats."""

from __future__ import annotations

import codecs
from typing import Final

from loaders.checkpoint.text import shown

HEAD_BYTES: Final = 512  # a Git LFS pointer is about 130 bytes, an error page says so at once

_LFS = (b"version https://git-lfs.github.com/spec/", b"version https://hawser.github.com/spec/")
_XET = b"# xet version"
_PAGES = (b"<!doctype", b"<html", b"<?xml", b"<error")
_OTHERS: tuple[tuple[bytes, str], ...] = (
    (b"GGUF", "a GGUF file (llama.cpp)"),
    (b"PK\x03\x04", "a zip archive: a torch file under another name? Rename it to .bin or .pt"),
    (b"\x80\x02", "a Python pickle: a torch file under another name? Rename it to .bin or .pt"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x93NUMPY", "a NumPy array file"),
    (b"\x1f\x8b", "gzip-compressed: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed: unpack it first"),
)


def foreign(head: bytes, size: int) -> tuple[str, str] | None:
    """(problem code, sentence) if the first bytes tell another kind of file, else None.

    `head` is the file's first HEAD_BYTES (or fewer), `size` its length in bytes. Only to be asked
    when the file could not be read as what it should be.
    """
    start = head.lstrip().lower()
    if head.startswith(_LFS):
        wanted = _pointer_size(head)
        real = f" (the real file has {wanted:,} bytes)" if wanted is not None else ""
        return "lfs-pointer", f"this is a Git LFS pointer, not the weights{real}: run git lfs pull"
    if head.startswith(_XET):
        return "lfs-pointer", "this is a Xet pointer, not the weights: download the file again"
    if start.startswith(_PAGES):
        return "not-weights", (
            "this is a web page or an error message saved under a weight file's name: "
            "download it again (a login or an access token may be needed)"
        )
    for magic, what in _OTHERS:
        if head.startswith(magic):
            return "not-weights", f"this is {what}"
    if head and not head.strip(b"\0"):
        return "not-weights", (
            f"the file starts with {len(head)} zero bytes: its space was reserved, "
            "but the download didn't finish; download it again"
        )
    if _is_text(head):
        first = head.decode("utf-8", "replace").strip().splitlines()
        return "not-weights", (
            f'this is text, not weights ({size:,} bytes, it begins "{shown(first[0][:60])}"): '
            "download it again"
        )
    return None


def _pointer_size(head: bytes) -> int | None:
    for line in head.splitlines():
        if line.startswith(b"size ") and line[5:].strip().isdigit():
            return int(line[5:])
    return None


def _is_text(head: bytes) -> bool:
    # A safetensors header is text too, but behind eight bytes of length with zeros among them.
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)  # it may end in a character
    except UnicodeDecodeError:
        return False
    return bool(text.strip()) and all(c.isprintable() or c in "\t\n\r\f\ufeff" for c in text)
