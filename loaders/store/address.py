"""Addresses of files and folders in stores: cutting, joining, and hiding what is secret in them.

Pure functions on text. An address is what fsspec takes: `s3://bucket/folder`, `https://host/folder`,
`hf://org/name`, `memory://x`, `file:///x`.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

HTTP: Final = ("http", "https")
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.\-]*)(::|://)")
_FRONT = re.compile(r"(?:\[[0-9A-Fa-f:.]*\])?([^/?#]*)")  # what stands before any path, IPv6 aside
_SHORTEST = 3
"""Letters of a piece of a secret that give something away; shorter ones are in any sentence."""

_ANY_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://[^\s'\"<>|]+")


def is_address(text: str) -> bool:
    """Whether it is an address and no local path."""
    return "://" in text


def scheme_of(address: str) -> str:
    """`s3` of `s3://bucket`, in lower case. ValueError for what is no address, and for a chained
    one (`simplecache::s3://bucket`): a cache between would answer in the store's place."""
    found = _SCHEME.match(address)
    if found is None:
        raise ValueError(f"{masked(address)}: expected an address such as s3://bucket/folder")
    if found[2] == "::":
        raise ValueError(
            f"{masked(address)}: chained addresses aren't read, because what stands between "
            f"(here {found[1]}) would answer in the store's place; give the last part alone"
        )
    return found[1].lower()


def user_of(address: str) -> str | None:
    """User and password, or a token, as they stand before the host; None if there are none.

    People write passwords as they are, with `/`, `#`, `?` and `@` in them, though an address can't
    hold them so. So if it begins with a name and a colon, or has an @ before any path, all up to
    the last @ is meant. That can be too much (`http://host:80/name@main`), never too little.
    """
    rest = address.partition("://")[2]
    front = _FRONT.match(rest)
    before, at, _ = rest.rpartition("@")
    assert front is not None  # it matches nothing, too
    return before if at and (":" in front[1] or "@" in front[1]) else None


def masked(address: str) -> str:
    """The address as it may be shown and recorded: without user, password and the values of its
    query, which hold signatures and tokens (`?***`). Where what is secret can't be told from what
    isn't, nothing but the scheme is left. Applying it twice changes nothing more."""
    scheme, mark, rest = address.partition("://")
    if not mark:
        return address
    user = user_of(address)
    if user is not None:
        if "?" in user or "#" in user:  # behind the last @ may stand the end of a signature
            return f"{scheme}://***"
        rest = f"***@{rest[len(user) + 1 :]}"
    head, query, _ = rest.partition("?")
    return f"{scheme}://{head}?***" if query else f"{scheme}://{head.partition('#')[0]}"


def secrets_of(address: str) -> tuple[str, ...]:
    """What mustn't be shown of it: the password (or token) whole, as it is meant where it is
    percent-encoded, in the pieces that a library may cut it into; the values of its query."""
    user = user_of(address)
    words = []
    if user is not None:
        name, colon, word = user.partition(":")
        word = word if colon else name
        words = [word, unquote(word)]
    query = address.partition("://")[2].partition("?")[2]
    pieces = [piece for word in words for piece in re.split(r"[/?#@:]", word)]
    pieces += [part.partition("=")[2] for part in re.split("[&;]", query)]
    long = [piece for piece in pieces if len(piece) >= _SHORTEST]
    return tuple(dict.fromkeys(filter(None, [*words, *long])))


def scrubbed(text: str) -> str:
    """A library's message with every address in it masked."""
    return _ANY_ADDRESS.sub(lambda found: masked(found[0]), text)


def joined(folder: str, name: str) -> str:
    """The address of a file in a folder. In http addresses the name is percent-encoded and a query
    (a shared access signature) stays behind the path; elsewhere `?` and `#` are parts of names."""
    if scheme_of(folder) in HTTP:
        parts = urlsplit(folder)
        path = f"{parts.path.rstrip('/')}/{quote(name)}"
        return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
    return f"{folder.rstrip('/')}/{name}" if not folder.endswith("://") else folder + name


def cut(address: str) -> tuple[str, str]:
    """(folder, name) of a file's address, the name decoded; the name is empty for a folder's that
    ends in a slash, or where there is nothing behind the host or bucket."""
    if scheme_of(address) in HTTP:
        parts = urlsplit(address)
        head, _, name = parts.path.rpartition("/")
        return urlunsplit((parts.scheme, parts.netloc, head, parts.query, "")), unquote(name)
    scheme, _, rest = address.partition("://")
    head, slash, name = rest.rpartition("/")
    return (f"{scheme}://{head}", name) if slash else (address, "")


def file_name(address: str) -> str:
    """The last part of the path, decoded; of a folder's address its own name."""
    if scheme_of(address) in HTTP:
        return unquote(urlsplit(address).path.rstrip("/").rpartition("/")[2])
    return address.partition("://")[2].rstrip("/").rpartition("/")[2]
