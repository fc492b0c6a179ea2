"""`coldload watch` on scripts that behave like engines."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import time
import tty
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_watch import (
    PATIENCE,
    alive,
    begun,
    documented,
    engine,
    interrupted,
    line_of,
    pids_in,
    until,
    watched,
)

READY = b"coldload: ready after"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_a_start_is_told_in_stages(tmp_path: Path) -> None:
    found = documented(tmp_path, "--until-ready", "--", *engine("plain"))
    seen = found["watch"]
    assert (found["status"], seen["outcome"], seen["ready_by"]) == ("ready", "ended", "log")
    assert (found["model"], found["vllm_version"]) == ("models/tiny", "0.32.0")
    assert found["phases"]["weights_gb"] == 1.25
    assert seen["stopped_by"] == "SIGINT"
    assert seen["stages"][0]["name"] == "start"
    assert sum(stage["seconds"] for stage in seen["stages"]) == pytest.approx(
        seen["ready_seconds"], abs=0.01
    )
    for stage in (*seen["stages"], seen["whole"]):
        parts = sum(stage["made_of"]["seconds"].values())
        assert parts == pytest.approx(stage["seconds"], abs=0.01)
    assert seen["whole"]["counted"]["minor_faults"] > 500
    assert seen["own"]["looks"] >= 2


def test_output_passes_unchanged_and_apart() -> None:
    alone = subprocess.run(engine("bars"), capture_output=True, check=True)
    done = watched("--", *engine("bars"))
    strip = lambda text: [line for line in text.split(b"\n") if b" INFO " not in line]  # noqa: E731
    assert strip(done.stdout) == strip(alone.stdout)
    ours = done.stderr.index(b"coldload: ")
    assert done.stderr[:ours] == alone.stderr[:ours]
    assert len(done.stderr[:ours]) == len(alone.stderr)


def test_megabytes_on_both_streams_arrive_whole() -> None:
    size = 2_000_000
    done = watched("--until-ready", "--", *engine("chatty", size))
    assert done.stdout.count(b"xxx\n") == done.stderr.count(b"yyy\n") == size // 100
    assert b"out 00019999" in done.stdout


def test_a_terminal_is_a_terminal_for_the_engine() -> None:
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    process = begun("--", *engine("bars"), stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    _, err = process.communicate(timeout=PATIENCE)
    out = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the other end is closed and all is read
            break
        if not data:
            break
        out += data
    os.close(ours)
    assert b"terminals: True False\n" in out
    assert b"\r\n" not in out, "the bytes must be the engine's own"
    assert b"no end" in out
    assert b"\r" in err
    assert process.returncode == 0


def test_the_document_is_alone_on_standard_output() -> None:
    done = watched("--json", "--until-ready", "--", *engine("plain"))
    found = json.loads(done.stdout)
    assert found["status"] == "ready"
    assert b"Starting to load model" in done.stderr


def test_it_goes_on_after_readiness_until_it_is_interrupted(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    process = begun("--record", record, "--", *engine("plain"))
    line_of(process, READY)
    assert process.poll() is None
    assert json.loads(record.read_text())["status"] == "ready"
    out, err = interrupted(process)
    assert process.returncode == 130
    assert "Shutting down" in out
    assert "then interrupted" in err
    found = json.loads(record.read_text())
    assert (found["watch"]["outcome"], found["watch"]["stopped_by"]) == ("interrupted", "SIGINT")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_end_it_as_ctrl_c_does(number: int) -> None:
    process = begun("--", *engine("plain"))
    line_of(process, READY)
    interrupted(process, number)
    assert process.returncode == 130


def test_interrupting_a_start_ends_all_its_processes_and_keeps_the_record(tmp_path: Path) -> None:
    record, pids = tmp_path / "record.json", tmp_path / "pids"
    process = begun("--record", record, "--grace", 0.2, "--", *engine("stubborn", pids))
    until(lambda: len(pids_in(pids)) == 2, "both processes are there")
    _, err = interrupted(process)
    assert process.returncode == 130
    assert not any(alive(pid) for pid in pids_in(pids))
    found = json.loads(record.read_text())
    assert found["status"] == "incomplete"
    assert (found["watch"]["outcome"], found["watch"]["stopped_by"]) == ("interrupted", "SIGKILL")
    assert "interrupted before it was ready" in err


def test_a_second_ctrl_c_waits_no_longer(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    process = begun("--grace", 3600, "--", *engine("stubborn", pids))
    until(lambda: len(pids_in(pids)) == 2, "both processes are there")
    for _ in range(2):
        os.kill(process.pid, signal.SIGINT)
        line_of(process, b"waiting up to 3600 s")
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert not any(alive(pid) for pid in pids_in(pids))


def test_until_ready_ends_one_that_will_not(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    found = documented(
        tmp_path, "--until-ready", "--grace", 0.2, "--", *engine("stubborn", pids, "ready")
    )
    assert found["watch"]["stopped_by"] == "SIGKILL"
    assert not any(alive(pid) for pid in pids_in(pids))


def test_never_ready_is_given_up_and_is_1(tmp_path: Path) -> None:
    found = documented(tmp_path, "--timeout", 0.5, "--", *engine("never", "words"), code=1)
    assert (found["status"], found["watch"]["outcome"]) == ("incomplete", "timeout")
    assert found["watch"]["stages"][-1]["explained"] is False


CRASHES = [
    (("exit", 3), 1, "exit code 3", "Following weights were not initialized"),
    (("signal", "SIGSEGV"), 1, "signal SIGSEGV", "signal SIGSEGV"),
    (("signal", "SIGKILL"), 1, "signal SIGKILL", "signal SIGKILL"),
    (("silent", 7), 1, "exit code 7", "exit code 7"),
]


@pytest.mark.parametrize(("args", "code", "how", "why"), CRASHES)
def test_a_crash_is_failed_and_names_its_end(
    args: tuple[Any, ...], code: int, how: str, why: str, tmp_path: Path
) -> None:
    found = documented(tmp_path, "--", *engine("crashing", *args), code=code)
    assert found["status"] == "failed"
    assert found["watch"]["how_it_ended"] == how
    assert why in found["failure"]


def test_a_crash_after_readiness_is_1_and_the_start_was_ready(tmp_path: Path) -> None:
    found = documented(tmp_path, "--", *engine("crashing", "late", 4), code=1)
    assert (found["status"], found["failure"]) == ("ready", None)
    assert found["watch"]["how_it_ended"] == "exit code 4"


def test_what_a_crash_leaves_behind_is_ended(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = ["--grace", 0.2, "--", *engine("crashing", "silent", 2, "leave", pids)]
    found = documented(tmp_path, *command, code=1)
    assert found["watch"]["left_over"] == 1
    assert not alive(pids_in(pids)[0])


@pytest.mark.parametrize("command", [["true"], engine("crashing", "silent", 0)])
def test_what_ends_well_without_an_engine_s_line_is_3(command: list[str]) -> None:
    watched("--", *command, code=3)


def test_grandchildren_that_come_and_go_are_counted(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    found = documented(tmp_path, "--until-ready", "--", *engine("forking", 4, pids))
    # Each of the four touches 32 MiB, and none of them lives for a tenth of a second.
    assert found["watch"]["whole"]["counted"]["minor_faults"] >= 4 * 32 * 256 * 0.9
    assert len(pids_in(pids)) == 6
    assert not any(alive(pid) for pid in pids_in(pids))


def test_one_that_puts_itself_into_the_background_is_watched_on(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    process = begun("--", *engine("daemonising", pids))
    line_of(process, READY)
    assert process.poll() is None
    interrupted(process)
    assert process.returncode == 130
    assert not alive(pids_in(pids)[0])


@pytest.mark.parametrize("how", ["read", "map"])
def test_what_a_load_fetches_stands_in_its_stage(how: str, tmp_path: Path) -> None:
    path, size = tmp_path / "weights", 16 << 20
    path.write_bytes(os.urandom(size))
    record, go = tmp_path / "record.json", tmp_path / "go"
    command = engine("loading", how, path, go)
    process = begun("--until-ready", "--record", record, "--", *command)
    assert process.stdout is not None
    for line in process.stdout:
        if b"Starting to load" in line:  # it has been stamped: what follows comes later
            time.sleep(0.5)  # and by now the tree has been looked at, on a busy machine too
            go.touch()
            break
    process.communicate(timeout=PATIENCE)
    found = json.loads(record.read_text())
    counted = {stage["name"]: stage["counted"] for stage in found["watch"]["stages"]}["weights"]
    if how == "read":
        assert counted["read_bytes"] >= size / 2
    else:
        assert counted["read_bytes"] < size / 2
        assert counted["minor_faults"] + counted["major_faults"] > 0


def test_ready_is_when_the_url_answers_200(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    found = documented(
        tmp_path, "--until-ready", "--ready-url", f"{url}/health",
        "--first-token-url", f"{url}/v1/completions", "--", *engine("silent", port, 3),
    )  # fmt: skip
    seen = found["watch"]
    assert (found["status"], seen["ready_by"]) == ("ready", "url")
    assert seen["first_token"]["seconds"] >= seen["ready_seconds"]
    assert seen["first_token"]["reason"] is None


def test_a_first_token_that_is_refused_says_why(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    found = documented(
        tmp_path, "--until-ready", "--ready-url", url, "--first-token-url", f"{url}/v1/completions",
        "--first-token-body", '{"prompt": "refuse"}', "--", *engine("silent", port, 0),
    )  # fmt: skip
    assert found["watch"]["first_token"]["seconds"] is None
    assert "answered 400" in found["watch"]["first_token"]["reason"]


def test_a_log_line_is_not_enough_where_a_url_is_to_answer(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/health"
    command = ["--timeout", 0.5, "--ready-url", url, "--", *engine("plain")]
    found = documented(tmp_path, *command, code=1)
    assert found["watch"]["ready_seconds"] is None


def test_readers_that_go_away_do_not_end_the_engine(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    ours, theirs = os.pipe()
    os.close(ours)
    process = begun(
        "--until-ready", "--record", record, "--", *engine("chatty", 10**6), stdout=theirs
    )
    os.close(theirs)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert json.loads(record.read_text())["watch"]["streams_nobody_read"] == ["stdout"]


WRONG = [
    (["--", "no-such-program"], "no-such-program"),
    (["--", "/etc/hostname"], "/etc/hostname"),
    (["--ready-url", "localhost:8000", "--", "true"], "http://HOST:PORT/PATH"),
    (["--first-token-body", "{", "--", "true"], "give JSON"),
    (["--first-token-body", "@/no/such", "--", "true"], "/no/such"),
    (["--record", "/no/such/folder/x", "--", "true"], "/no/such/folder"),
    (["--timeout", "0", "--", "true"], "--timeout"),
    ([], "ENGINE"),
]


@pytest.mark.parametrize(("args", "words"), WRONG, ids=[words for _, words in WRONG])
def test_wrong_usage_is_2_and_says_what_to_do(args: list[str], words: str) -> None:
    done = watched(*args, code=2)
    assert words.encode() in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_program_that_is_not_there_leaves_its_reason_as_json() -> None:
    done = watched("--json", "--", "no-such-program", code=2)
    assert "no-such-program" in json.loads(done.stdout)["error"]
