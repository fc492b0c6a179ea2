"""The fork server: children fork, speak, end, crash; nothing stays behind, however it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.measuring import children
from bench.measuring.channel import Channel, ClosedError, receive_packet, send_packet, stamped_pair
from bench.measuring.children import ChildError, Server
from tests.tiny_bench import gone, wait_until

HERE = "tests.tiny_children"
ROOT = Path(__file__).parent.parent


def heard(server: Server, target: str, **args: Any) -> dict[str, Any]:
    """What a child says first; its end is waited for."""
    child = server.fork(f"{HERE}:{target}", **args)
    try:
        return child.hear(60)
    finally:
        child.finish()


@pytest.fixture(scope="module", autouse=True)
def tests_are_importable() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        yield


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("children") / "children.log")
    yield server
    server.close()


def test_a_child_hears_and_speaks(server: Server) -> None:
    child = server.fork(f"{HERE}:echoes")
    for number in range(3):
        child.tell({"n": number, "text": "ü\n\ud800"})
        assert child.hear(30) == {"n": number, "text": "ü\n\ud800"}
    child.kill()
    assert gone(child.pid)


def test_a_child_gets_its_arguments(server: Server) -> None:
    child = server.fork(f"{HERE}:says", a=1, b=None, c=[True, "x"])
    assert child.hear(30) == {"a": 1, "b": None, "c": [True, "x"]}
    assert child.finish() == 0
    assert child.finish() == 0  # asked twice


def test_arguments_may_be_larger_than_a_packet(server: Server) -> None:
    names = [f"/mnt/checkpoint/{number:06}.npy" for number in range(100_000)]
    child = server.fork(f"{HERE}:counts_bytes", names=names)
    assert child.hear(60) == {"names": 100_000, "bytes": sum(map(len, names))}
    assert child.finish() == 0


def test_a_child_inherits_what_was_preloaded_and_nothing_else(server: Server) -> None:
    def kept() -> Any:
        return heard(server, "tells_about_itself")["kept"]

    assert kept() != kept()
    server.preload(f"{HERE}:kept", value="a")
    one, two = (heard(server, "tells_about_itself") for _ in range(2))
    assert one["kept"] == two["kept"]
    assert one["pid"] != two["pid"]
    assert one["parent"] == two["parent"] != os.getpid()
    assert one["threads"] == 1
    assert one["inheritable"] is False
    # standard streams, the channel, and the one that lists the folder
    assert one["descriptors"] == 5


def test_a_preload_that_fails_says_why_and_the_server_lives(server: Server) -> None:
    with pytest.raises(ChildError, match="ValueError: not like this"):
        server.preload(f"{HERE}:refuses")
    with pytest.raises(ChildError, match="ModuleNotFoundError"):
        server.preload("no_such_module:function")
    assert heard(server, "says", a=1) == {"a": 1}


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("no_such_module:function", "ModuleNotFoundError: No module named 'no_such_module'"),
        (f"{HERE}:no_such_function", "AttributeError: .*no_such_function"),
        (f"{HERE}:says_not", "AttributeError"),
        (f"{HERE}:raises_badly", "ended with exit code 1 without a result"),
        (f"{HERE}:writes_rubbish", "message can't be read"),
    ],
)
def test_a_child_that_fails_is_an_error_with_its_reason(
    server: Server, target: str, reason: str
) -> None:
    child = server.fork(target)
    with pytest.raises(ChildError, match=reason):
        child.hear(30)
    assert gone(child.pid)


def test_what_a_child_says_shows_no_secret(server: Server) -> None:
    child = server.fork(f"{HERE}:names_an_address")
    with pytest.raises(ChildError, match=r"OSError: can't read https://\*\*\*@host/x\?\*\*\*"):
        child.hear(30)
    assert "***@host" in server.log.read_text()
    assert "sig=s3cr3t" not in server.log.read_text()
    assert "me:" not in server.log.read_text()


@pytest.mark.parametrize("code", [0, 1, 77])
def test_exit_codes(server: Server, code: int) -> None:
    child = server.fork(f"{HERE}:ends", code=code)
    with pytest.raises(ChildError, match=f"exit code {code} without a result"):
        child.hear(30)
    assert child.finish() == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_c39_a_child_that_is_killed(server: Server, number: signal.Signals) -> None:
    child = server.fork(f"{HERE}:waits")
    assert child.hear(30) == {"ready": True}
    os.kill(child.pid, number)
    with pytest.raises(ChildError, match=f"the child ended by {number.name}"):
        child.hear(30)
    assert child.finish() == -number
    assert gone(child.pid)


def test_a_silent_child_is_killed(server: Server) -> None:
    child = server.fork(f"{HERE}:waits")
    child.hear(30)
    with pytest.raises(ChildError, match=r"no answer within 0\.05 s; the child was killed"):
        child.hear(0.05)
    assert gone(child.pid)


def test_telling_a_dead_child(server: Server) -> None:
    child = server.fork(f"{HERE}:ends", code=5)
    assert wait_until(lambda: gone(child.pid))
    with pytest.raises(ChildError, match="exit code 5"):
        child.tell({"go": "x" * 10_000_000})


def test_many_children_leave_no_zombie_and_no_descriptor(server: Server) -> None:
    server_pid = server._process.pid

    def descriptors(pid: int) -> int:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))

    for number in range(2):  # what the first ones open for good doesn't count
        server.fork(f"{HERE}:says", n=number).finish()
    ours, theirs = descriptors(os.getpid()), descriptors(server_pid)
    pids = []
    for number in range(40):
        child = server.fork(f"{HERE}:says", n=number)
        if number % 2:
            assert child.hear(30) == {"n": number}
            child.finish()
        else:
            child.kill()
        pids.append(child.pid)
    assert (descriptors(os.getpid()), descriptors(server_pid)) == (ours, theirs)
    assert all(not Path(f"/proc/{pid}").exists() for pid in pids)


def test_children_at_the_same_time(server: Server) -> None:
    several = [server.fork(f"{HERE}:echoes") for _ in range(4)]
    for number, child in enumerate(several):
        child.tell({"n": number})
    assert [child.hear(30)["n"] for child in several] == [0, 1, 2, 3]
    for child in several:
        child.kill()
    assert all(gone(child.pid) for child in several)


def test_an_answer_that_nobody_waited_for_is_passed_over(server: Server) -> None:
    """Ctrl-C between question and answer."""
    send_packet(server._control, {"op": "preload", "target": f"{HERE}:refuses", "seq": -1})
    child = server.fork(f"{HERE}:says", a=1)
    assert child.hear(30) == {"a": 1}
    child.finish()
    assert server.reap(child.pid, 30) == (0, False)
    assert server.reap(child.pid, 30) == (0, False)  # it was reaped already


def test_a_killed_server_takes_its_children_along_and_is_started_again(tmp_path: Path) -> None:
    server = Server(tmp_path / "log")
    server.preload(f"{HERE}:kept", value="a")
    child = server.fork(f"{HERE}:waits")
    child.hear(30)
    os.kill(server._process.pid, signal.SIGKILL)
    with pytest.raises(ChildError, match=r"the fork server is gone \(exit -9\)"):
        child.hear(30)
    assert wait_until(lambda: gone(child.pid))
    child.kill()  # once more does no harm
    after = [heard(server, "tells_about_itself")["kept"] for _ in range(2)]
    assert after[0] == after[1]  # preloaded again
    server.close()
    assert gone(server._process.pid)


def test_a_server_that_cannot_start_says_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so is of another world')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ChildError, match=r"ImportError: libtorch\.so is of another world"):
        Server(tmp_path / "log")


def test_a_closed_server_ends(tmp_path: Path) -> None:
    server = Server(tmp_path / "log")
    child = server.fork(f"{HERE}:waits")
    child.hear(30)
    server.close()
    assert server._process.returncode == 0
    child._channel.close()
    assert wait_until(lambda: gone(child.pid))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_runner_takes_server_and_children_along(
    tmp_path: Path, number: signal.Signals
) -> None:
    script = textwrap.dedent(
        f"""
        import sys, time
        from pathlib import Path
        from bench.measuring.children import Server
        server = Server(Path("{tmp_path}/log"))
        child = server.fork("{HERE}:waits")
        child.hear(60)
        print(server._process.pid, child.pid, flush=True)
        time.sleep(1000)
        """
    )
    runner = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert runner.stdout is not None
    pids = [int(pid) for pid in runner.stdout.readline().split()]
    assert len(pids) == 2
    assert not any(gone(pid) for pid in pids)
    runner.send_signal(number)
    runner.wait()
    runner.stdout.close()
    assert wait_until(lambda: all(gone(pid) for pid in pids))


def test_the_server_does_not_answer_to_ctrl_c_of_its_terminal(server: Server) -> None:
    assert os.getsid(server._process.pid) == server._process.pid


def test_a_server_without_descriptors_left_fails_one_fork(server: Server) -> None:
    """A packet whose descriptor could not be received."""
    answer = server._ask
    with pytest.raises(ChildError, match="no channel came with the fork"):
        answer({"op": "fork"})
    assert heard(server, "says", a=1) == {"a": 1}


def test_a_channel_puts_pieces_together() -> None:
    left, right = socket.socketpair()
    channel = Channel(right)
    left.sendall(b'{"a": 1}\n{"b"')
    assert channel.receive(5) == {"a": 1}
    with pytest.raises(TimeoutError):
        channel.receive(0.01)
    left.sendall(b": 2}\n")
    assert channel.receive(5) == {"b": 2}
    left.close()
    with pytest.raises(ClosedError):
        channel.receive(5)
    with pytest.raises(ClosedError):
        channel.send({"more": "x" * 10_000_000})
    channel.close()


def test_a_packet_tells_when_it_was_sent() -> None:
    """However late it is received; a stream's message tells when it was received."""
    ours, theirs = stamped_pair()
    sender, receiver = Channel(theirs), Channel(ours)
    before = time.perf_counter()
    sender.send({"done": True})
    after = time.perf_counter()
    while time.perf_counter() < after + 0.2:
        pass
    assert receiver.receive(5) == {"done": True}
    slack = 0.1  # two clocks are read one after the other
    assert before - slack <= receiver.sent_at <= after + slack
    # longer than a packet, and on the way back, which isn't stamped
    sender.send({"more": "x" * 70_000})
    assert receiver.receive(5) == {"more": "x" * 70_000}
    receiver.send({"go": True})
    before = time.perf_counter()
    assert sender.receive(5) == {"go": True}
    assert sender.sent_at >= before
    for sock in (ours, theirs):
        sock.close()


def test_packets_to_nobody() -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    right.close()
    with pytest.raises(ClosedError):
        send_packet(left, {"a": 1})
    with pytest.raises(ClosedError):
        receive_packet(left)
    left.close()


def test_hints_are_of_this_system() -> None:
    assert "cut short" in children._hint("SIGBUS")
    assert children._hint("SIGHUP") == ""
