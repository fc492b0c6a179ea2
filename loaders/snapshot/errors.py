"""What can stand in the way of a snapshot. Each text says what, where and what to do."""

from __future__ import annotations


class StateError(ValueError):
    """This model has no such state."""


class NotAsWrittenError(Exception):
    """What was read back isn't what was written: the storage or the memory of this host is bad."""
