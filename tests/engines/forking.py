"""Work is done by grandchildren that come and go; one stays, in a session of its own.

argv: how many come and go, and a file that each pid is written to.
"""

import os
import sys
from pathlib import Path

from say import begin, pool, serve, warm, weights
from say import ready as say_ready

COUNT, PIDS = int(sys.argv[1]), sys.argv[2]


def burn(mib: int) -> None:
    block = bytearray(mib << 20)
    for at in range(0, len(block), 4096):
        block[at] = 1


def note() -> None:
    with Path(PIDS).open("a") as file:
        file.write(f"{os.getpid()}\n")


note()
begin()
for _ in range(COUNT):
    child = os.fork()
    if child == 0:
        note()
        burn(32)
        os._exit(0)
    os.waitpid(child, 0)
daemon = os.fork()
if daemon == 0:
    os.setsid()
    if os.fork():
        os._exit(0)  # the one that stays has no parent of ours any more
    note()
    serve()
    os._exit(0)
os.waitpid(daemon, 0)
weights()
pool()
warm()
say_ready()
serve()
