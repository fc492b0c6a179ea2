"""For all tests."""

from __future__ import annotations

import importlib.util

# pytest reads this file in a run of the benches, too, which needs no package of the tests.
if importlib.util.find_spec("hypothesis") is not None:
    from hypothesis import settings

    # A busy host makes any example slow now and then; what is slow is a benchmark's affair.
    settings.register_profile("coldload", deadline=None)
    settings.load_profile("coldload")
