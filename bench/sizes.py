"""Sizes as people write them, to bytes and back."""

from __future__ import annotations

import re
from decimal import Decimal

# A bare letter is binary, as in `dd`, `fio`, `ls -h` and `du -h`: 1G is 2^30. Whoever means 10^9
# writes GB. Case doesn't matter, since nobody asks for bits or for milli-bytes here.
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SIZE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([kmgtp]?)(i?b|i)?", re.ASCII)


class SizeError(ValueError):
    """A text that is not a size."""


def parse_size(text: str) -> int:
    """Bytes of "1GiB", "16 MiB", "1.5GB", "500M" or "4096", rounded down.

    KiB ... PiB (and Ki ... Pi, as Kubernetes writes them) are powers of 1024, KB ... PB powers of
    1000, a bare K ... P powers of 1024. SizeError for anything else and for less than a byte.
    """
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or (match[3] in ("i", "ib") and not match[2]):
        raise SizeError(
            f"not a size: {text!r}. Write a number and a unit, as in 1GiB (2^30), 1.5GB (10^9), "
            "500M (2^20), or plain bytes"
        )
    base = 1000 if match[2] and match[3] == "b" else 1024
    size = int(Decimal(match[1]) * base ** _POWERS[match[2]])
    if size < 1:
        raise SizeError(f"not a size: {text!r} is less than one byte")
    return size


def format_size(size: int) -> str:
    """`size` bytes in the largest binary unit that leaves at least 1: "1.00 GiB", "512 B"."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        # Rounded, because 1023.996 MiB would print as 1024.00 MiB.
        if abs(round(value, 2)) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{size} B" if unit == "B" else f"{value:.2f} {unit}"


def short_size(nbytes: int) -> str:
    """As a name holds it: "1GiB", "512MiB", "1.53GiB"; exact multiples without decimals."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            whole, rest = divmod(nbytes, factor)
            return f"{whole}{unit}" if rest == 0 else f"{nbytes / factor:.2f}{unit}"
    return f"{nbytes}B"
