"""Doesn't end for anybody: ignores what can be ignored, and so does its child. argv: a file for the
pids, and `ready` to be ready."""

import os
import signal
import sys
import time
from pathlib import Path

from say import begin, start

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
child = os.fork()
if child == 0:
    time.sleep(600)
Path(sys.argv[1]).write_text(f"{os.getpid()}\n{child}\n")
start() if "ready" in sys.argv else begin()
time.sleep(600)
