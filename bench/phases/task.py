"""What the child of a phase is told, and how it gets ready."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.measuring.child import manifest, prepare, reference
from bench.measuring.verify import Reference
from loaders.checkpoint.manifest import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One sample of a phase: the case's way, options, threads, device and layout, the checkpoint
    that it works on, and the cores there are."""

    way: str
    options: Mapping[str, Any]
    threads: int
    device: str
    layout: str
    cores: int
    touch_bytes: int
    manifest_path: str
    reference_path: str

    @property
    def checkpoint(self) -> Checkpoint:
        """As the runner read it: no header is read here, which would warm a cold file."""
        return manifest(path=self.manifest_path)

    @property
    def reference(self) -> Reference:
        return reference(path=self.reference_path)


def begin(given: Mapping[str, Any]) -> Task:
    """The task from what the runner sent, in a process that is ready to be measured."""
    task = Task(**given)
    prepare(task.touch_bytes, task.cores)
    return task
