"""Prints some megabytes on both streams while it starts: no byte of it may be lost."""

import sys

from say import serve, start

SIZE = int(sys.argv[1])
for at in range(SIZE // 100):
    sys.stdout.write(f"out {at:08d} ".ljust(99, "x") + "\n")
    sys.stderr.write(f"err {at:08d} ".ljust(99, "y") + "\n")
sys.stderr.flush()
start()
serve()
