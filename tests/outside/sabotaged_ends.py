"""More wrong loaders: those that leave things behind, and those that stamp wrongly."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
from sabotaged import Honest, Pairs

from loaders.contract import Stamp

# --- leaves things behind


class LeavesProcess(Honest):
    """Starts a process that outlives it; `pids` is the file that its number goes to."""

    name = "leaves-process"
    options = {"how": "spawn", "pids": ""}  # noqa: RUF012

    def sabotage(self, pairs: list[tuple[str, torch.Tensor]], stamp: Stamp) -> Pairs:
        if self.timed:
            if self.settings["how"] == "spawn":
                pid = subprocess.Popen(["sleep", "1000"]).pid
            elif (pid := os.fork()) == 0:
                time.sleep(1000)
            Path(str(self.settings["pids"])).write_text(str(pid))
        yield from pairs
        if self.settings["how"] == "fork-and-die" and self.timed:
            os._exit(3)


class Doubles(Honest):
    """Forks and lets both go on: two processes would tell the same story."""

    name = "doubles"

    def sabotage(self, pairs: list[tuple[str, torch.Tensor]], stamp: Stamp) -> Pairs:
        if self.timed:
            os.fork()
        yield from pairs


class LeavesThreads(Honest):
    name = "leaves-threads"

    def sabotage(self, pairs: list[tuple[str, torch.Tensor]], stamp: Stamp) -> Pairs:
        for _ in range(4):
            threading.Thread(target=time.sleep, args=(1000,)).start()
        yield from pairs


class Chatters(Honest):
    name = "chatters"

    def sabotage(self, pairs: list[tuple[str, torch.Tensor]], stamp: Stamp) -> Pairs:
        print("chatter " * 100_000)
        print("chatter " * 100_000, file=sys.stderr, flush=True)
        yield from pairs


# --- stamps


class Stamps(Honest):
    """Stamps in a way that would count time twice."""

    name = "stamps"
    options = {"how": "nested"}  # noqa: RUF012

    def sabotage(self, pairs: list[tuple[str, torch.Tensor]], stamp: Stamp) -> Pairs:
        if self.settings["how"] == "nested":
            with stamp("open"), stamp("allocate"):
                pass
        elif self.settings["how"] == "across":
            with stamp("open"):
                yield pairs[0]
        elif self.settings["how"] == "thread":
            with stamp("open"):
                aside = threading.Thread(target=stamp("allocate").__enter__)
                aside.start()
                aside.join()
        yield from pairs


class RaisesWhenMade(Honest):
    name = "raises-when-made"

    def __init__(self, threads: int = 1, **given: bool | int | str) -> None:
        raise LookupError("no accelerator of that kind")
