"""Passwords, keys and tokens are in nothing that explain and watch print or write."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from bench.cli import main
from bench.explain.secrets import hidden, masked_command, secrets_in
from bench.watch.probes import first_token
from tests.servers import free_port
from tests.tiny_watch import engine, watched


@contextmanager
def answering() -> Iterator[tuple[str, list[str]]]:
    """A server that keeps what it was sent as authorisation."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *args: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


COMMANDS = [
    (["vllm", "serve", "s3://me:pa55@h/m"], ["vllm", "serve", "s3://***@h/m"]),
    (["x", "--api-key", "k1", "k2", "-p"], ["x", "--api-key", "***", "***", "-p"]),
    (["x", "--hf-token=abc", "--hf_token", "d"], ["x", "--hf-token=***", "--hf_token", "***"]),
    (["env", "HF_TOKEN=abc", "VLLM_API_KEY=d"], ["env", "HF_TOKEN=***", "VLLM_API_KEY=***"]),
    (["sh", "-c", "A_TOKEN=abc v --api-key d -v"], ["sh", "-c", "A_TOKEN=*** v --api-key *** -v"]),
    (["x", '{"api_key": "abc", "n": 1}'], ["x", '{"api_key": ***, "n": 1}']),
    (["--ssl-keyfile", "/k", "--tokenizer", "t"], ["--ssl-keyfile", "/k", "--tokenizer", "t"]),
    (["--max-num-batched-tokens", "8192"], ["--max-num-batched-tokens", "8192"]),
    (["x", "hf_abcdefghijklmnopqrst"], ["x", "***"]),
]  # fmt: skip


@pytest.mark.parametrize(("command", "shown"), COMMANDS, ids=[" ".join(c) for c, _ in COMMANDS])
def test_a_command_line_without_its_secrets(command: list[str], shown: list[str]) -> None:
    assert masked_command(command) == shown
    assert masked_command(shown) == shown


def test_values_that_are_hidden_wherever_they_stand() -> None:
    command = ["vllm", "serve", "s3://me:pa55word@h/m", "--api-key", "sesame", "--seed", "12345"]
    known = secrets_in(command, {"VLLM_API_KEY": "envkey", "PATH": "/usr/bin", "HF_TOKEN": "x"})
    assert known == {"sesame", "pa55word", "envkey"}  # what is shorter is in any sentence
    assert hidden("401: sesame, not sesames; envkey!", known) == "401: ***, not sesames; ***!"


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: larger than the maximum number of tokens that can be stored (48112)",
        "KeyError: 'model.token'", "Missing keys ('a.b', 'c') in loaded state!",
        "token=None, eos_token_id=2, pad_token=0", "http://localhost:8000/v1/completions",
        "ValueError: Unexpected token: foo", "FileNotFoundError: /models/key/model.safetensors",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(text: str) -> None:
    assert hidden(text) == text


@given(
    st.text(max_size=60), st.sampled_from(["--api-key ", "HF_TOKEN=", "'password': '", "a://b:"])
)
def test_hiding_twice_changes_nothing_more(text: str, before: str) -> None:
    once = hidden(before + text)
    assert hidden(once) == once


def test_secrets_that_an_engine_prints_are_in_no_output(tmp_path: Path) -> None:
    text = (
        "INFO 01-01 10:00:00 [api_server.py:1] vLLM API server version 0.9.0\n"
        "INFO 01-01 10:00:00 [api_server.py:1] args: Namespace(model='s3://me:pa55word@host/m', "
        "api_key='sesame123', hf_token='hf_secret9')\n"
        "ERROR 01-01 10:00:01 [x.py:1] ValueError: s3://me:pa55word@host/m?sig=deadbeef: 403, "
        "api_key=sesame123\n"
    )
    path, record = tmp_path / "x.log", tmp_path / "record.json"
    path.write_text(text)
    shown = [
        CliRunner().invoke(main, ["explain", str(path), *options]).stdout
        for options in (["--record", str(record)], ["--json"], ["--yaml"])
    ]
    for one in (*shown, record.read_text()):
        assert "s3://***@host/m" in one
        assert not [word for word in ("pa55word", "sesame123", "deadbeef") if word in one]


def test_a_watched_engines_keys_are_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server echoes what it's sent; the key for it comes from the environment."""
    monkeypatch.setenv("OUR_KEY", "sesame-opens")
    port, record = free_port(), tmp_path / "record.json"
    url = f"http://me:pa55word@127.0.0.1:{port}"
    done = watched(
        "--until-ready", "--json", "--record", record, "--api-key-env", "OUR_KEY",
        "--ready-url", f"{url}/health?sig=deadbeef", "--first-token-url", f"{url}/v1/completions",
        "--first-token-body", '{"prompt": "refuse"}',
        "--", *engine("silent", port, 0), "s3://me:pa55word@host/m", "--api-key", "other-key",
    )  # fmt: skip
    command = json.loads(record.read_text())["watch"]["command"]
    assert "'s3://***@host/m' --api-key '***'" in command
    assert "answered 400" in json.loads(done.stdout)["watch"]["first_token"]["reason"]
    for told in (done.stdout.decode(), done.stderr.decode(), record.read_text()):
        for secret in ("sesame-opens", "pa55word", "deadbeef", "other-key"):
            assert secret not in told


def test_an_engine_that_cannot_be_started_does_not_tell_its_password() -> None:
    done = watched("--", "s3://me:pa55word@host/m", code=2)
    assert b"s3://***@host/m" in done.stderr
    assert b"pa55word" not in done.stderr
    asked = watched("--ready-url", "ftp://me:pa55word@host/m", "--", "true", code=2)
    assert b"pa55word" not in asked.stderr


@pytest.mark.parametrize("name", ["NO_SUCH_VARIABLE", "sk-given-by-mistake"])
def test_a_key_is_taken_from_a_variable_that_exists(name: str) -> None:
    done = watched("--api-key-env", name, "--", "true", code=2)
    assert b"give the name of a variable" in done.stderr
    assert b"given-by-mistake" not in done.stderr


def test_the_key_is_sent_as_engines_expect_it() -> None:
    with answering() as (url, seen):
        first_token(f"{url}/v1/completions", None, "k")
        first_token(f"{url.replace('//', '//me:p%40w@')}/health", None)
    assert seen == ["Bearer k", "Basic bWU6cEB3"]
