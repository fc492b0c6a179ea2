"""Fails while it starts. argv: `exit N`, `signal NAME`, `silent N` (without a word), or `late N`
(after it was ready); `leave PIDS` as last words leaves a process behind."""

import os
import signal
import sys
import time
from pathlib import Path

from say import begin, error, start

how, what = sys.argv[1], sys.argv[2]
if "leave" in sys.argv:
    child = os.fork()
    if child == 0:
        os.setsid()
        time.sleep(600)
    Path(sys.argv[-1]).write_text(f"{child}\n")
if how == "silent":
    sys.exit(int(what))
if how == "late":
    start()
    sys.exit(int(what))
begin()
if how == "signal":
    os.kill(os.getpid(), getattr(signal, what))
error("Traceback (most recent call last):")
error("ValueError: Following weights were not initialized from checkpoint: {'lm_head.weight'}")
sys.exit(int(what))
