"""For all tests."""

from __future__ import annotations

import importlib.util
import signal

# A shell that starts something in the background has it ignore SIGINT, and whatever that starts
# inherits it: then no test could interrupt a run.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# pytest reads this file in a run of the benches, too, which needs no package of the tests.
if importlib.util.find_spec("hypothesis") is not None:
    from hypothesis import settings

    # A busy host makes any example slow now and then; what is slow is a benchmark's affair.
    settings.register_profile("coldload", deadline=None)
    settings.load_profile("coldload")
