"""Starts the server in the background and ends, as launchers do. argv: a file for the pid."""

import os
import sys
from pathlib import Path

from say import serve, start

if os.fork():
    sys.exit(0)
os.setsid()
Path(sys.argv[1]).write_text(f"{os.getpid()}\n")
start()
serve()
