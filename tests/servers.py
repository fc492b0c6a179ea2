"""Servers on loopback that tests start and end: a real nginx, one that misbehaves, one for S3."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest

HOST = "127.0.0.1"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def nginx(root: Path, work: Path, *, user: str | None = None) -> Iterator[str]:
    """nginx serving `root`; yields its address. With `user` ("name:password") it asks for it. The
    test is skipped where nginx isn't installed."""
    binary = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if binary is None:
        pytest.skip("nginx isn't installed (Debian's package nginx)")
    work.mkdir(parents=True, exist_ok=True)
    port = free_port()
    auth = ""
    if user is not None:
        name, _, password = user.partition(":")
        (work / "users").write_text(f"{name}:{{PLAIN}}{password}\n")
        auth = f"auth_basic here; auth_basic_user_file {work}/users;"
    temporary = "\n".join(
        f"{kind}_temp_path {work}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = work / "nginx.conf"
    config.write_text(
        f"daemon off; master_process off; pid {work}/pid; error_log {work}/errors;\n"
        "events { worker_connections 256; }\n"
        f"http {{ access_log {work}/requests; {temporary}\n"
        f"server {{ listen {HOST}:{port}; root {root}; sendfile on; {auth} }} }}\n"
    )
    process = subprocess.Popen(
        [binary, "-e", f"{work}/errors", "-p", str(work), "-c", str(config)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port, process, work / "errors")
        yield f"http://{HOST}:{port}"
    finally:
        process.terminate()
        process.wait(10)


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(200):
        if process.poll() is not None:
            raise RuntimeError(f"nginx ended: {log.read_text() if log.exists() else 'no log'}")
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), 1):
            return
        time.sleep(0.05)
    raise RuntimeError("nginx doesn't listen")


@dataclass
class Behaviour:
    """What a server does wrong. `fail`: that many requests get `status` first, with `retry_after`;
    `cut`: that many answers end after `cut_after` bytes; `stall`: that many never answer; `delay`:
    seconds before each answer; `ranges` False: always the whole file; `length_off`: added to
    Content-Length; `shift`: the range that is sent begins that much later; `most`: bytes an answer;
    `moved`: redirects below /moved to the same name at `moved`; `user`: "name:password" is asked
    for; `each`: each range gets `status` the first time that it is asked for; `only`: these apply
    to paths that hold this text alone."""

    fail: int = 0
    status: int = 503
    retry_after: str | None = None
    cut: int = 0
    cut_after: int = 100
    stall: int = 0
    delay: float = 0.0
    ranges: bool = True
    length_off: int = 0
    shift: int = 0
    most: int | None = None
    moved: str | None = None
    user: str | None = None
    each: bool = False
    only: str = ""


@dataclass
class Server:
    """`files`: path without slash -> bytes. `asked`: (path, Range header) of each request, `sent`
    bytes of bodies, `auth` the Authorization headers."""

    address: str
    files: dict[str, bytes]
    behaviour: Behaviour
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    auth: list[str | None] = field(default_factory=list)
    sent: int = 0
    running: int = 0
    most_running: int = 0

    def ranges(self) -> list[tuple[int, int]]:
        """The ranges that were asked for, in order, as (first, last)."""
        found = [re.fullmatch(r"bytes=(\d+)-(\d+)", text or "") for _, text in self.asked]
        return [(int(one[1]), int(one[2])) for one in found if one is not None]


@contextlib.contextmanager
def misbehaving(files: dict[str, bytes], **behaviour: Any) -> Iterator[Server]:
    """A server of its own making that serves `files` with ranges and then does as told."""
    server = Server(address="", files=files, behaviour=Behaviour(**behaviour))
    lock = threading.Lock()
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 20

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            with lock:
                server.running += 1
                server.most_running = max(server.most_running, server.running)
            try:
                self._answer()
            except OSError:
                self.close_connection = True  # the client had enough
            finally:
                with lock:
                    server.running -= 1

        def _take(self, name: str, path: str) -> bool:
            told = server.behaviour
            with lock:
                if told.only not in path or getattr(told, name) <= 0:
                    return False
                setattr(told, name, getattr(told, name) - 1)
                return True

        def _refuse(self, status: int, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _answer(self) -> None:
            told = server.behaviour
            path = unquote(self.path).partition("?")[0].lstrip("/")
            asked = self.headers.get("Range")
            with lock:
                first = (path, asked) not in server.asked
                server.asked.append((path, asked))
                server.auth.append(self.headers.get("Authorization"))
            if told.delay:
                ended.wait(told.delay)
            if self._take("stall", path):
                ended.wait(20)
                self.close_connection = True
                return
            if self._take("fail", path) or (told.each and first and told.only in path):
                after = {"Retry_After": told.retry_after} if told.retry_after else {}
                self._refuse(told.status, **after)
                return
            if told.moved is not None and path.startswith("moved/"):
                self._refuse(302, Location=told.moved + path.removeprefix("moved"))
                return
            if told.user is not None and self.headers.get("Authorization") is None:
                self._refuse(401, WWW_Authenticate="Basic")
                return
            if path not in server.files:
                self._refuse(404)
                return
            self._send(server.files[path], asked, path)

        def _send(self, whole: bytes, asked: str | None, path: str) -> None:
            told = server.behaviour
            span = re.fullmatch(r"bytes=(\d+)-(\d+)", asked or "")
            if span is not None and told.ranges:
                first, last = int(span[1]), min(int(span[2]), len(whole) - 1)
                if told.most is not None:
                    last = min(last, first + told.most - 1)
                first += told.shift
                if first >= len(whole):
                    self._refuse(416, Content_Range=f"bytes */{len(whole)}")
                    return
                body = whole[first : last + 1]
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(whole)}")
            else:
                body = whole
                self.send_response(200)
            self.send_header("Content-Length", str(len(body) + told.length_off))
            self.end_headers()
            if len(body) > told.cut_after and self._take("cut", path):
                body = body[: told.cut_after]
                self.close_connection = True
            if told.length_off > 0:
                self.close_connection = True
            self.wfile.write(body)
            with lock:
                server.sent += len(body)

    listening = ThreadingHTTPServer((HOST, 0), Handler)
    listening.daemon_threads = True
    server.address = f"http://{HOST}:{listening.server_address[1]}"
    thread = threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        ended.set()
        listening.shutdown()
        listening.server_close()
        thread.join(10)


@contextlib.contextmanager
def s3(monkeypatch: pytest.MonkeyPatch, bucket: str) -> Iterator[SimpleNamespace]:
    """moto's server, a stand-in for S3, with an empty bucket; `put(key, bytes)`. The environment
    names it to every client. The test is skipped where s3fs or moto isn't installed."""
    pytest.importorskip("s3fs")
    boto3 = pytest.importorskip("boto3")
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer(ip_address=HOST, port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    try:
        client = boto3.client("s3")
        client.create_bucket(Bucket=bucket)

        def put(key: str, body: bytes) -> None:
            client.put_object(Bucket=bucket, Key=key, Body=body)

        yield SimpleNamespace(put=put, address=f"s3://{bucket}")
        client.close()
    finally:
        server.stop()
