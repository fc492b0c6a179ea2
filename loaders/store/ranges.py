"""Ranges of files in stores: what is asked for arrives, or one clear error; everything counted."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol, TypeVar
from urllib.parse import urlsplit

from loaders.store.address import HTTP, masked, scheme_of, user_of
from loaders.store.backend import BackendStore, Entry
from loaders.store.errors import StoreError, TransientError
from loaders.store.http import HttpStore

RETRIES: Final = 5
FIRST_WAIT: Final = 0.2
LONGEST_WAIT: Final = 20.0
TIMEOUT: Final = 30.0

T = TypeVar("T")


class _Store(Protocol):
    """What reads ranges. All raise StoreError for good and TransientError for now."""

    def read_into(self, url: str, offset: int, into: memoryview, /) -> tuple[int, float | None]: ...
    def size(self, url: str, /) -> int: ...
    def whole(self, url: str, most: int, /) -> bytes: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Ranges:
    """Reads ranges of the files below one address, from any number of threads.

    http and https are read by our own client, so is hf (whose files have such addresses); every
    other scheme goes through fsspec. A failure that may pass (HTTP 408, 425, 429 and 5xx, a cut
    connection, a timeout) is tried again up to `retries` times per range, after a wait that doubles
    from 0.2 s (the server's Retry-After if it gives one, 20 s at most), from where the range was
    cut. After that, and for what won't pass, one StoreError.

    `counts`: `requests` sent (redirects and listings too), `bytes` received in bodies of ranges,
    `retries`, `busy_us` microseconds that threads spent in requests for ranges, and of those
    `wait_us` until the answers began; this one is 0 where it isn't told (all but http).
    """

    def __init__(
        self,
        address: str,
        *,
        concurrency: int = 1,
        retries: int = RETRIES,
        timeout: float = TIMEOUT,
        first_wait: float = FIRST_WAIT,
    ) -> None:
        """Sends nothing yet, for http and object stores. StoreError for an address that nothing
        here can read."""
        self.counts = {"requests": 0, "bytes": 0, "retries": 0, "busy_us": 0, "wait_us": 0}
        self._retries = retries
        self._first_wait = first_wait
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._urls: dict[str, str] = {}
        self.backend: BackendStore | None = None
        try:
            scheme = scheme_of(address)
        except ValueError as error:
            raise StoreError("absent", str(error)) from error
        headers: dict[str, dict[str, str]] = {}
        if scheme in HTTP:
            _check_http(address)
        else:
            self.backend = self._patiently(  # some connect at once: ftp, github
                address,
                lambda: BackendStore(
                    address, concurrency=concurrency, timeout=timeout, on_request=self._asked
                ),
            )
        if scheme == "hf":
            headers = _hub_headers()
        self._by_url = scheme == "hf"
        self._store: _Store
        if self.backend is None or self._by_url:
            self._store = HttpStore(timeout=timeout, on_request=self._asked, headers=headers)
        else:
            self._store = self.backend

    def fill(self, address: str, offset: int, into: memoryview) -> None:
        """Fills `into` with the file's bytes from `offset` on. StoreError."""
        done, failures, began = 0, 0, time.monotonic()
        while done < len(into):
            started = time.perf_counter()
            try:
                got, waited = self._store.read_into(self._url(address), offset + done, into[done:])
            except TransientError as error:
                done += error.got
                self._count(bytes=error.got, busy_us=_us(started))
                failures += 1
                what = f"bytes {offset:,} to {offset + len(into):,}"
                self._wait(error, failures, began, address, what)
                continue
            done += got
            waited_us = 0 if waited is None else round(waited * 1e6)
            self._count(bytes=got, busy_us=_us(started), wait_us=waited_us)

    def read(self, address: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset` on. StoreError."""
        into = bytearray(length)
        if length:
            self.fill(address, offset, memoryview(into))
        return bytes(into)

    def size(self, address: str) -> int:
        """The file's size in bytes. StoreError."""
        if self.backend is not None:
            backend = self.backend
            return self._patiently(address, lambda: backend.size(address))
        return self._patiently(address, lambda: self._store.size(address))

    def whole(self, address: str, most: int) -> bytes:
        """A small file, StoreError if it has more than `most` bytes."""
        return self._patiently(address, lambda: self._store.whole(self._url(address), most))

    def entry(self, address: str) -> Entry:
        """What stands at an address; StoreError for http, which can't tell."""
        backend = self._lister(address)
        return self._patiently(address, lambda: backend.entry(address))

    def entries(self, address: str) -> list[Entry]:
        """What a folder holds; StoreError for http, which can't tell."""
        backend = self._lister(address)
        return self._patiently(address, lambda: backend.entries(address))

    def stop(self) -> None:
        """Ends waits and http requests under way at once, others before the next request, with
        StoreError `stopped`."""
        self._stop.set()
        self._store.abort()

    def close(self) -> None:
        self.stop()
        self._store.close()
        if self.backend is not None and self._by_url:
            self.backend.close()

    def _lister(self, address: str) -> BackendStore:
        if self.backend is None:
            raise StoreError("failed", f"{masked(address)}: plain HTTP can't list folders")
        return self.backend

    def _url(self, address: str) -> str:
        if not self._by_url or self.backend is None:
            return address
        with self._lock:
            found = self._urls.get(address)
        if found is None:
            found = self.backend.url(address)
            with self._lock:
                self._urls[address] = found
        return found

    def _patiently(self, address: str, ask: Callable[[], T]) -> T:
        failures, began = 0, time.monotonic()
        while True:
            try:
                return ask()
            except TransientError as error:
                failures += 1
                self._wait(error, failures, began, address, "the whole")

    def _wait(
        self, error: TransientError, failures: int, began: float, address: str, what: str
    ) -> None:
        """Waits before the next attempt, or gives up."""
        if failures > self._retries:
            took = time.monotonic() - began
            raise StoreError(
                "failed",
                f"{masked(address)}: {what}: gave up after {failures} attempts in {took:.1f} s; "
                f"the last one: {error}",
            ) from error
        self._count(retries=1)
        wait = min(self._first_wait * 2 ** (failures - 1), LONGEST_WAIT)
        wait *= random.uniform(0.5, 1.0)  # so that the threads don't all come back at once
        if error.after is not None:
            wait = min(max(wait, error.after), LONGEST_WAIT)
        if self._stop.wait(wait):
            raise StoreError("stopped", f"{masked(address)}: reading was stopped") from error

    def _asked(self) -> None:
        if self._stop.is_set():
            raise StoreError("stopped", "reading was stopped")
        self._count(requests=1)

    def _count(self, **more: int) -> None:
        with self._lock:
            for name, number in more.items():
                self.counts[name] += number


def _check_http(address: str) -> None:
    """StoreError for what can't be cut into host, port and path. Without the library's own words:
    they quote a part of it, which may be a password's."""
    where = masked(address)
    try:
        host = urlsplit(address).netloc
    except ValueError:
        text = f"{where}: not an address that can be read; brackets are for IPv6 hosts"
        raise StoreError("absent", text) from None
    port = host.rpartition("]")[2].partition(":")[2]
    if "@" in host or not port or port.isdecimal():
        return
    if user_of(address) is not None:
        text = "the password in it has to be percent-encoded (/ as %2F, # as %23, ? as %3F)"
    else:
        text = "its port isn't a number"
    raise StoreError("absent", f"{where}: {text}")


def _us(started: float) -> int:
    return round((time.perf_counter() - started) * 1e6)


def _hub_headers() -> dict[str, dict[str, str]]:
    """The Hub's token for the Hub's own host; files' redirects to other hosts go without."""
    from huggingface_hub import constants, get_token

    token, host = get_token(), urlsplit(constants.ENDPOINT).hostname
    return {host: {"Authorization": f"Bearer {token}"}} if token and host else {}
