"""Binding a thread to the cores that are nearest to a device's link."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from loaders.system.files import Root, cpu_list, text, under


def node_cores(node: int, root: Root = "/") -> frozenset[int]:
    """The cores of a NUMA node; empty where /sys doesn't know it."""
    content = text(under(root, f"/sys/devices/system/node/node{node}/cpulist"))
    try:
        return frozenset(cpu_list(content or ""))
    except ValueError:
        return frozenset()


def bindable(node: int | None, root: Root = "/") -> tuple[frozenset[int], str | None]:
    """The cores that a thread for a device at `node` is bound to: those of the node that this
    process may use. Empty with the reason where it can't be bound."""
    if node is None:
        return frozenset(), "the device's NUMA node isn't known"
    cores = node_cores(node, root)
    if not cores:
        return frozenset(), f"/sys names no cores of NUMA node {node}"
    usable = cores & os.sched_getaffinity(0)
    if not usable:
        return frozenset(), f"this process may use none of the cores of NUMA node {node}"
    return frozenset(usable), None


@contextmanager
def bound_to(cores: frozenset[int]) -> Iterator[None]:
    """Binds the calling thread (and the threads that it starts meanwhile) to the cores; none leaves
    it as it is. The memory that it touches first then lies at their node."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)  # on Linux, 0 is the calling thread, not the process
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
