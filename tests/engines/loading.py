"""Loads a file as its weights. argv: `read` or `map`, the file, and a file to wait for
before.
"""

import mmap
import sys
import time
from pathlib import Path

from say import begin, pool, ready, serve, warm, weights

how, path, go = sys.argv[1:4]
begin()
while not Path(go).exists():
    time.sleep(0.005)
with Path(path).open("rb") as file:
    if how == "read":
        while file.read(1 << 20):
            pass
    else:
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            sum(view[at] for at in range(0, len(view), 4096))
weights()
pool()
warm()
ready()
serve()
