"""Goes on starting. argv: nothing, or `words` to say that it begins."""

import sys
import time

from say import begin

if "words" in sys.argv:
    begin()
time.sleep(600)
