"""Asking a server from outside: is it ready, and how long until its first token."""

from __future__ import annotations

import base64
import http.client
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from loaders.store.address import masked

_POLL = 0.1
_TIMEOUT = 5.0
_TOKEN_TIMEOUT = 120.0
_FIRST = 1 << 16

_PROMPT = "Hello"


class UrlError(ValueError):
    """A text that is no http address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """`url` answered with status 200 at `time` (seconds of time.monotonic)."""

    time: float
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """`time` is when the first byte of the first token came, `seconds` how long after the request;
    both None where none came, and `reason` says why."""

    time: float | None = None
    seconds: float | None = None
    reason: str | None = None


def checked(url: str) -> str:
    """`url`, if it's an http address with a host. UrlError otherwise."""
    parts = urlsplit(url)
    try:
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        port_is_fine = False
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_fine:
        raise UrlError(f"{masked(url)!r} is no address: write http://HOST:PORT/PATH")
    return url


def poll(
    url: str, key: str | None, answered: Callable[[Answered], None], stop: threading.Event
) -> None:
    """Asks every tenth of a second until the answer is 200 or `stop` is set. Errors are answers,
    too: nobody listens yet, or what listens isn't ready (503)."""
    while not stop.wait(_POLL):
        try:
            if _status(url, key) == 200:
                answered(Answered(time=time.monotonic(), url=url))
                return
        except (OSError, http.client.HTTPException):
            continue


def _status(url: str, key: str | None) -> int:
    connection = _connect(urlsplit(url), _TIMEOUT)
    try:
        connection.request("GET", _path(url), headers=_authorised(url, key))
        return connection.getresponse().status
    finally:
        connection.close()


def first_token(url: str, body: str | None, key: str | None = None) -> FirstToken:
    """Posts `body` to `url` (GET where there is nothing to post) and waits for the first token.
    `key` is sent as OpenAI's interface has it, else the user and password of the address.

    Without a body, an address that ends in `completions` is asked for one token in a stream, as
    OpenAI's interface has it. Of a stream of events the first one with data counts, of anything
    else the first byte.
    """
    if body is None and urlsplit(url).path.rstrip("/").endswith("completions"):
        body = json.dumps(_request(urlsplit(url).path))
    began = time.monotonic()
    try:
        connection = _connect(urlsplit(url), _TOKEN_TIMEOUT)
        try:
            headers = _authorised(url, key)
            if body is None:
                connection.request("GET", _path(url), headers=headers)
            else:
                headers["Content-Type"] = "application/json"
                connection.request("POST", _path(url), body.encode(), headers)
            response = connection.getresponse()
            if response.status != 200:
                told = response.read(500).decode("utf-8", "replace")
                return FirstToken(reason=f"{url} answered {response.status}: {told}")
            at = _first_byte(response)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        return FirstToken(reason=f"{url}: {error or type(error).__name__}")
    if at is None:
        return FirstToken(reason=f"{url} answered 200 without any content")
    return FirstToken(time=at, seconds=at - began)


def _authorised(url: str, key: str | None) -> dict[str, str]:
    if key:
        return {"Authorization": f"Bearer {key}"}
    parts = urlsplit(url)
    if parts.username is None:
        return {}
    user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}


def _request(path: str) -> dict[str, object]:
    asked: dict[str, object] = {"max_tokens": 1, "stream": True}
    if path.rstrip("/").endswith("chat/completions"):
        return {**asked, "messages": [{"role": "user", "content": _PROMPT}]}
    return {**asked, "prompt": _PROMPT}


def _first_byte(response: http.client.HTTPResponse) -> float | None:
    """When the first token's line was there. An event stream may begin with comments and empty
    lines that keep the connection alive."""
    events = "event-stream" in (response.getheader("Content-Type") or "")
    while True:
        got = response.readline(_FIRST) if events else response.read1(_FIRST)
        if not got:
            return None
        if not events or (got.startswith(b"data:") and b"[DONE]" not in got):
            return time.monotonic()


def _connect(parts: SplitResult, timeout: float) -> http.client.HTTPConnection:
    host = parts.hostname or ""
    if parts.scheme == "https":
        return http.client.HTTPSConnection(host, parts.port, timeout=timeout)
    return http.client.HTTPConnection(host, parts.port, timeout=timeout)


def _path(url: str) -> str:
    parts = urlsplit(url)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
