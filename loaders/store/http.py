"""Range requests over HTTP, by the standard library's client: a body goes straight from the socket
into the caller's memory, while the other threads run."""

from __future__ import annotations

import http.client
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urljoin, urlsplit

from loaders.store.address import HTTP, masked
from loaders.store.errors import StoreError, TransientError
from loaders.store.lines import Lines, read_away, words

_PIECE: Final = 1 << 20
"""Bytes per read from the socket: what a cut connection can cost, and no more."""

_MOST_REDIRECTS: Final = 5
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_FOR_NOW: Final = (408, 425, 429)
_NEVER: Final = (501, 505)
_RANGE = re.compile(r"^bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """A response whose body is still to be read. `waited`: seconds until it began; `length`: bytes
    of the range that it answers; `total`: bytes of the whole file, None if untold."""

    response: http.client.HTTPResponse
    connection: http.client.HTTPConnection
    waited: float
    length: int = 0
    total: int | None = None


class HttpStore:
    """Reads ranges of files at http and https addresses, from any number of threads, each with its
    own connections, which it keeps. Redirects are followed, and remembered per file. User and
    password in an address become basic authentication, for its own host only; `headers` is host ->
    what else is sent there. Proxies as the environment says (http_proxy, https_proxy, no_proxy).

    `on_request` is told each request that is sent, redirects included. Every method raises
    StoreError and TransientError.
    """

    def __init__(
        self,
        *,
        timeout: float,
        on_request: Callable[[], None] = lambda: None,
        headers: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._lines = Lines(timeout=timeout, headers=headers or {})
        self._on_request = on_request
        self._lock = threading.Lock()
        self._moved: dict[str, str] = {}

    def read_into(self, url: str, offset: int, into: memoryview) -> tuple[int, float | None]:
        """Fills `into` from `offset` on; fewer bytes where the server sends fewer at a time.
        Returns (bytes, seconds until the answer began)."""
        answer = self._ranged(url, offset, offset + len(into) - 1)
        done = 0
        try:
            while done < answer.length:
                end = min(done + _PIECE, answer.length)
                got = answer.response.readinto(into[done:end])
                if got == 0:
                    text = f"the connection ended {answer.length - done:,} bytes early"
                    raise TransientError(text, got=done)
                done += got
        except (OSError, http.client.HTTPException) as error:
            answer.connection.close()
            raise TransientError(words(error), got=done) from error
        except TransientError:
            answer.connection.close()
            raise
        if not answer.response.isclosed():  # more is to come than was asked for
            read_away(answer.response, answer.connection)
        return done, answer.waited

    def size(self, url: str) -> int:
        """The file's size in bytes, from a request for its first byte: servers that sign addresses
        refuse HEAD."""
        answer = self._ranged(url, 0, 0)
        read_away(answer.response, answer.connection)
        if answer.total is None:
            text = "the server doesn't tell the file's size (Content-Range without a total)"
            raise StoreError("failed", f"{masked(url)}: {text}")
        return answer.total

    def whole(self, url: str, most: int) -> bytes:
        """A small file; StoreError if it is larger than `most` bytes."""
        answer = self._answered(url, {})
        response = answer.response
        if response.status != 200:
            read_away(response, answer.connection)
            raise _refusal(response, url)
        try:
            raw = response.read(most + 1)
        except (OSError, http.client.HTTPException) as error:
            answer.connection.close()
            raise TransientError(words(error)) from error
        if response.isclosed() and not response.length:
            return raw
        answer.connection.close()
        if len(raw) > most:
            raise StoreError("failed", f"{masked(url)}: more than {most:,} bytes can't be one")
        raise TransientError("the connection ended early")

    def abort(self) -> None:
        """Ends the requests under way."""
        self._lines.abort()

    def close(self) -> None:
        self._lines.close()

    def _ranged(self, url: str, first: int, last: int) -> _Answer:
        """The answer to a range request, checked to be that range."""
        answer = self._answered(url, {"Range": f"bytes={first}-{last}"})
        response, headers = answer.response, answer.response.headers
        found = _RANGE.match(headers.get("Content-Range", "").strip())
        total = int(found[3]) if found and found[3] != "*" else None
        empty = response.status == 200 and headers.get("Content-Length", "").strip() == "0"
        # An empty file has no first byte: some servers say so by 416, nginx sends all of it.
        if first == 0 and (empty or (response.status == 416 and total == 0)):
            return _Answer(
                response=response, connection=answer.connection, waited=answer.waited, total=0
            )
        refusal: StoreError | TransientError | None = None
        if response.status == 416 or (total is not None and total <= last):
            size = "fewer" if total is None else f"{total:,}"
            text = f"expected at least {last + 1:,} bytes, found {size}; the file was cut off or"
            advice = "replaced since it was examined: `coldload check` it"
            refusal = StoreError("short", f"{masked(url)}: {text} {advice}", found=total)
        elif response.status != 206:
            refusal = _refusal(response, url)
        elif headers.get("Content-Encoding", "identity").lower() != "identity":
            refusal = StoreError("failed", f"{masked(url)}: the server compresses what it sends")
        elif found is None or found[1] is None or not first == int(found[1]) <= int(found[2]):
            stated = headers.get("Content-Range", "no Content-Range")[:80]
            text = f"asked for bytes {first}-{last}, the server answers with {stated!r}"
            refusal = StoreError("no-ranges", f"{masked(url)}: {text}")
        if refusal is not None:
            answer.connection.close()  # what it would send may be the whole file
            raise refusal
        assert found is not None
        length = min(int(found[2]), last) - first + 1
        return _Answer(
            response=response,
            connection=answer.connection,
            waited=answer.waited,
            length=length,
            total=total,
        )

    def _answered(self, url: str, headers: Mapping[str, str]) -> _Answer:
        """The first answer that is no redirect, asked for where the last ones led."""
        with self._lock:
            remembered = self._moved.get(url)
        place = remembered or url
        for _ in range(_MOST_REDIRECTS + 1):
            answer = self._ask(place, headers)
            status = answer.response.status
            if status not in _REDIRECTS:
                break
            target = answer.response.headers.get("Location", "")
            read_away(answer.response, answer.connection)
            place = urljoin(place, target)
            if not target or urlsplit(place).scheme not in HTTP:
                raise StoreError("failed", f"{masked(url)}: redirected to nowhere")
        else:
            text = f"redirected more than {_MOST_REDIRECTS} times"
            raise StoreError("failed", f"{masked(url)}: {text}")
        with self._lock:
            if status < 400 and place != url:
                self._moved[url] = place
            elif status >= 400:
                self._moved.pop(url, None)
        if remembered is not None and status in (401, 403, 404, 410):
            # Its signature ran out: the next attempt starts from the file's own address.
            answer.connection.close()
            raise TransientError(f"HTTP {status} at the address it was redirected to")
        return answer

    def _ask(self, place: str, headers: Mapping[str, str]) -> _Answer:
        parts = urlsplit(place)
        line = self._lines.to(parts)
        target = line.prefix + (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        own = {"Accept-Encoding": "identity", "User-Agent": "coldload"}
        self._on_request()
        began = time.perf_counter()
        try:
            line.connection.request("GET", target, headers={**own, **line.headers, **headers})
            response = line.connection.getresponse()
        except ssl.SSLCertVerificationError as error:
            line.connection.close()
            advice = "SSL_CERT_FILE can name a bundle of trusted certificates"
            text = f"{masked(place)}: its certificate isn't trusted ({error.verify_message})"
            raise StoreError("refused", f"{text}; {advice}") from error
        except (OSError, http.client.HTTPException) as error:
            line.connection.close()
            raise TransientError(words(error)) from error
        except ValueError as error:  # blanks or control characters in the address
            raise StoreError("absent", f"{masked(place)}: not an address: {error}") from error
        return _Answer(
            response=response,
            connection=line.connection,
            waited=time.perf_counter() - began,
        )


def _refusal(response: http.client.HTTPResponse, url: str) -> StoreError | TransientError:
    status, where = response.status, masked(url)
    said = f"HTTP {status} {response.reason}".strip()
    if status in _FOR_NOW or (status >= 500 and status not in _NEVER):
        return TransientError(said, after=_seconds(response.headers.get("Retry-After")))
    if status == 200:
        return StoreError(
            "no-ranges",
            f"{where}: the server ignores range requests and sends the whole file each time, which "
            "would read it many times over; use a server with ranges, or download it first",
        )
    if status in (404, 410):
        return StoreError("absent", f"{where}: no such file ({said})")
    if status in (401, 403, 407):
        return StoreError(
            "refused",
            f"{where}: {said}: no permission, or no such file where listing isn't permitted; give "
            "user and password in the address (https://user:password@host/...) or a signed address",
        )
    return StoreError("failed", f"{where}: {said}, which is no answer to a range request")


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and re.fullmatch(r"\d{1,6}", text.strip()) else None
