"""A bar with carriage returns, colours, a line in two pieces, no bytes of UTF-8, no last line end.
Says what its streams are."""

import os
import sys

from say import start

sys.stdout.write(f"terminals: {os.isatty(1)} {os.isatty(2)}\n")
if os.isatty(1):
    sys.stdout.write(f"size: {os.get_terminal_size(1).columns}\n")
sys.stdout.flush()
for at in range(1, 5):
    bar = f"\rLoading safetensors checkpoint shards: {at * 25:3d}% Completed | {at}/4 "
    os.write(2, f"{bar}[00:0{at}<00:00]".encode())
os.write(2, b"\n\x1b[0;36m(Worker pid=7)\x1b[0;0m caf\xe9 \x00\r\n")
os.write(1, b"in two ")
os.write(2, b"between\n")
os.write(1, b"pieces\n")
start()
os.write(1, b"no end")
