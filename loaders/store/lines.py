"""Connections to HTTP hosts, one per thread and host, with the proxies and passwords given."""

from __future__ import annotations

import base64
import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from loaders.store.address import masked
from loaders.store.errors import StoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A connection, what stands before the path in its requests (a proxy wants the whole address),
    and the headers that each of them carries."""

    connection: http.client.HTTPConnection
    prefix: str
    headers: Mapping[str, str]


class Lines:
    """Each thread's own connections; closed together. `headers`: host -> what is sent there, and to
    no other host."""

    def __init__(self, *, timeout: float, headers: Mapping[str, Mapping[str, str]]) -> None:
        self._timeout = timeout
        self._headers = headers
        self._lock = threading.Lock()
        self._own = threading.local()
        self._all: list[http.client.HTTPConnection] = []
        self._tls: ssl.SSLContext | None = None

    def to(self, parts: SplitResult) -> Line:
        """This thread's connection to the address's host. StoreError for a bad host or port."""
        held: dict[str, Line] = self._own.__dict__
        key = f"{parts.scheme}://{parts.netloc}"
        if key not in held:
            held[key] = self._open(parts)
        return held[key]

    def abort(self) -> None:
        """Ends what any thread is waiting for on a connection; those threads get an error."""
        with self._lock:
            for connection in self._all:
                if (sock := connection.sock) is not None:
                    with contextlib.suppress(OSError):  # it was ending anyway
                        sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._lock:
            for connection in self._all:
                connection.close()
            self._all.clear()

    def _open(self, parts: SplitResult) -> Line:
        try:
            host, port = parts.hostname, parts.port
        except ValueError as error:
            text = f"{masked(parts.geturl())}: its port isn't a number from 0 to 65535"
            raise StoreError("absent", text) from error
        if not host:
            raise StoreError("absent", f"{masked(parts.geturl())}: no host in the address")
        headers = {**basic("Authorization", parts), **self._headers.get(host, {})}
        proxy = _proxy(parts.scheme, host)
        at, at_port = (host, port) if proxy is None else (proxy.hostname or "", proxy.port)
        prefix = ""
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(
                at, at_port, timeout=self._timeout, context=self._context()
            )
            if proxy is not None:
                connection.set_tunnel(host, port or 443, basic("Proxy-Authorization", proxy))
        else:
            connection = http.client.HTTPConnection(at, at_port, timeout=self._timeout)
            if proxy is not None:
                prefix = f"http://{parts.netloc.rpartition('@')[2]}"
                headers.update(basic("Proxy-Authorization", proxy))
        with self._lock:
            self._all.append(connection)
        return Line(connection=connection, prefix=prefix, headers=headers)

    def _context(self) -> ssl.SSLContext:
        with self._lock:  # reading the system's certificates takes some milliseconds
            self._tls = self._tls or ssl.create_default_context()
            return self._tls


def basic(header: str, parts: SplitResult) -> dict[str, str]:
    """User and password of an address as a header; none if it has none."""
    if parts.username is None:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {header: f"Basic {base64.b64encode(pair.encode()).decode()}"}


def read_away(response: http.client.HTTPResponse, connection: http.client.HTTPConnection) -> None:
    """Leaves the connection ready for the next request: reads a short body to its end, closes the
    connection instead where more is to come."""
    with contextlib.suppress(OSError, http.client.HTTPException):  # then it is closed
        response.read(4096)
        if response.isclosed():
            return
    connection.close()


def words(error: Exception) -> str:
    """A network error in words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = str(error) or type(error).__name__
    return f"{type(error).__name__}: {text}" if text != type(error).__name__ else text


def _proxy(scheme: str, host: str) -> SplitResult | None:
    found = getproxies().get(scheme)
    if not found or proxy_bypass(host):
        return None
    return urlsplit(found if "://" in found else f"http://{found}")
