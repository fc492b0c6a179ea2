"""Loaded before the plug-in, which needs torch: a torch that can't be imported because an
accelerator's software is installed in part ends in one clear error, not in a traceback."""

from __future__ import annotations

import pytest

from loaders.device.faults import explain_import

try:
    import torch as torch
except Exception as error:  # whatever a backend raises while torch loads it
    said = explain_import(error)
    if said is None:
        raise
    raise pytest.UsageError(f"coldload: {said}") from None
