"""The manifest of a safetensors checkpoint in a store: the same rules and faults as in a folder.

Where the store can list (object stores, the Hub, anything that fsspec lists), the folder's names
decide as they do locally. Plain HTTP can't: there the index says which files there are, without an
index it is `model.safetensors`. Of each weight file 8 + N bytes are read, and one more for its size
where no listing tells it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from loaders.checkpoint import names
from loaders.checkpoint.folder import Asked, Found, read_item, read_items
from loaders.checkpoint.index import MAX_JSON, parse_index, parse_json
from loaders.checkpoint.listing import Item, natural
from loaders.checkpoint.manifest import NoWeightsError, Problem, UnreadableError
from loaders.checkpoint.nothing import nothing_here
from loaders.checkpoint.safetensors_header import Header, header_of
from loaders.checkpoint.source import Source
from loaders.checkpoint.text import listed, shown
from loaders.store.address import cut, file_name, joined, masked
from loaders.store.errors import StoreError
from loaders.store.ranges import Ranges

SUFFIX: Final = ".safetensors"
CONFIG: Final = "config.json"
SINGLE: Final = ("model.safetensors", "consolidated.safetensors")
THREADS: Final = 16
"""Headers asked for at a time: each takes two round trips, and a large checkpoint has 160 files."""


def read_address(
    address: str, asked: Asked, *, open_ranges: Callable[..., Ranges] = Ranges
) -> Found:
    """What lies at an address: a folder, a weight file or an index (its folder is meant).

    `files` have their addresses as paths, `root` is masked. NoWeightsError; UnreadableError for
    what can't be had (absent, refused, no answer, no ranges, a missing package) and for formats
    other than safetensors.
    """
    if asked not in ("auto", "safetensors"):
        raise UnreadableError(
            f"{shown(masked(address))}: format {asked} is read from local folders only; copy it "
            "to one first"
        )
    ranges: Ranges | None = None
    try:
        ranges = open_ranges(address, concurrency=THREADS)
        return _Remote(ranges, address).found()
    except StoreError as error:
        raise UnreadableError(str(error)) from error
    finally:
        if ranges is not None:
            ranges.close()


class _Remote:
    """One look at one address."""

    def __init__(self, ranges: Ranges, address: str) -> None:
        self._ranges = ranges
        self._address = address
        self._refused: StoreError | None = None
        self._source = Source(json=self._json, header=self._header, threads=THREADS)

    def found(self) -> Found:
        name = file_name(self._address)
        index = name if ".index." in name and name.endswith(".json") else None
        if self._ranges.backend is None:
            if index is not None:
                folder = cut(self._address)[0]
                return self._folder(folder, self._by_index(folder, [index]))
            if _is_weights(name):
                return self._single(name, self._ranges.size(self._address))
            return self._folder(self._address, self._unlisted(self._address))
        entry = self._ranges.entry(self._address)
        if entry.kind == "folder":
            return self._folder(self._address, self._listing(self._address))
        if index is not None:
            folder = cut(self._address)[0]
            return self._folder(folder, self._listing(folder))
        return self._single(name, entry.size)

    def _folder(self, folder: str, items: list[Item]) -> Found:
        if not any(item.name.endswith(SUFFIX) or _is_index(item.name) for item in items):
            raise nothing_here(masked(folder), items, "safetensors")
        return read_items(masked(folder), items, SUFFIX, self._source)

    def _single(self, name: str, size: int) -> Found:
        if not name.endswith(SUFFIX):
            raise NoWeightsError(
                f"{shown(masked(self._address))}: only *{SUFFIX} files are read at an address; "
                "copy others to a local folder first"
            )
        folder = cut(self._address)[0]
        item = Item(name=name, path=self._address, kind="file", size=size)
        beside = self._probe(folder, CONFIG) or Item(name=CONFIG, path="", kind="dangling")
        return read_item(masked(folder), item, beside, torch_file=False, source=self._source)

    def _listing(self, folder: str) -> list[Item]:
        items = [
            Item(
                name=entry.name,
                path=joined(folder, entry.name),
                kind=entry.kind,
                size=entry.size,
            )
            for entry in self._ranges.entries(folder)
        ]
        return sorted(items, key=lambda item: natural(item.name))

    def _unlisted(self, folder: str) -> list[Item]:
        """The files of a folder that can't be listed, by the names that they would have."""
        items = self._by_index(folder, names.STANDARD_INDEX[SUFFIX])
        if not items:
            single = next(filter(None, (self._probe(folder, name) for name in SINGLE)), None)
            items = [*self._probed(folder, [CONFIG]), single] if single is not None else []
        if items:
            return items
        if self._refused is not None:
            raise self._refused
        tried = listed([*names.STANDARD_INDEX[SUFFIX], *SINGLE], 10)
        raise NoWeightsError(
            f"{shown(masked(folder))}: no weights found: plain HTTP can't list a folder, and there "
            f"is none of {tried}; give the address of the index or of a {SUFFIX} file"
        )

    def _by_index(self, folder: str, candidates: Iterable[str]) -> list[Item]:
        """The first of the indexes that is there, with what it names; empty if there is none."""
        for name in candidates:
            item = self._probe(folder, name)
            if item is None:
                continue
            root, problems = self._json(item)
            index = None if problems else parse_index(root, name)[0]
            files = sorted(index.files, key=natural) if index is not None else []
            return [*self._probed(folder, [CONFIG, *files]), item]
        return []

    def _probed(self, folder: str, wanted: list[str]) -> list[Item]:
        with ThreadPoolExecutor(max_workers=THREADS) as pool:
            found = pool.map(lambda name: self._probe(folder, name), wanted)
            return [item for item in found if item is not None]

    def _probe(self, folder: str, name: str) -> Item | None:
        """A file that may be there. Servers that don't let strangers list answer 403 for what is
        absent; that is said only if nothing is found at all."""
        path = joined(folder, name)
        try:
            return Item(name=name, path=path, kind="file", size=self._ranges.size(path))
        except StoreError as error:
            if error.kind == "refused":
                self._refused = self._refused or error
            elif error.kind != "absent":
                raise
            return None

    def _json(self, item: Item) -> tuple[Any, list[Problem]]:
        try:
            raw = self._ranges.whole(item.path, MAX_JSON)
        except StoreError as error:
            text = f"{shown(item.name)}: can't be read: {error}"
            return None, [Problem(code="index-unreadable", file=item.name, message=text)]
        return parse_json(raw, item.name)

    def _header(self, item: Item) -> Header:
        def read(offset: int, length: int) -> bytes:
            length = max(min(length, item.size - offset), 0)
            return self._ranges.read(item.path, offset, length)

        return header_of(read, item.size, item.name)


def _is_weights(name: str) -> bool:
    return names.suffix_of(name) is not None


def _is_index(name: str) -> bool:
    return bool(names.index_names([name], SUFFIX))
