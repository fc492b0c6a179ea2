"""What the children of the fork server run in tests, as `tests.tiny_children:function`."""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path
from typing import Any

from bench.measuring.channel import Channel


@cache
def kept(*, value: str) -> float:
    """Made once, in the server if it is preloaded there."""
    return time.time_ns()


def refuses() -> None:
    raise ValueError("not like this")


def says(channel: Channel, **given: Any) -> None:
    channel.send(given)


def tells_about_itself(channel: Channel) -> None:
    channel.send(
        {
            "pid": os.getpid(),
            "parent": os.getppid(),
            "kept": kept(value="a"),
            "descriptors": len(list(Path("/proc/self/fd").iterdir())),
            "threads": len(list(Path("/proc/self/task").iterdir())),
            "inheritable": os.get_inheritable(channel.sock.fileno()),
        }
    )


def echoes(channel: Channel) -> None:
    while True:
        channel.send(channel.receive())


def counts_bytes(channel: Channel, names: list[str]) -> None:
    channel.send({"names": len(names), "bytes": sum(map(len, names))})


def writes_rubbish(channel: Channel) -> None:
    channel.sock.sendall(b"not a message\n")
    time.sleep(1000)


def waits(channel: Channel, pid_file: str | None = None) -> None:
    if pid_file is not None:
        Path(pid_file).write_text(str(os.getpid()))
    channel.send({"ready": True})
    time.sleep(1000)


def ends(channel: Channel, code: int) -> None:
    os._exit(code)


def names_an_address(channel: Channel) -> None:
    raise OSError("can't read https://me:s3cr3t@host/x?sig=s3cr3t")


def raises_badly(channel: Channel) -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    raise MuteError
