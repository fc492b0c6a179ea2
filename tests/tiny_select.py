"""What a folder's manifest says, for the tests of selection."""

from __future__ import annotations

from pathlib import Path

import torch

from loaders.checkpoint.manifest import (
    Checkpoint,
)

W = {"w": ("F32", [2])}
TWO = [{"a": ("F32", [2])}, {"b": ("F32", [2])}]


def codes(checkpoint: Checkpoint, severity: str = "error") -> set[str]:
    return {problem.code for problem in checkpoint.problems if problem.severity == severity}


def files(checkpoint: Checkpoint) -> list[str]:
    return [file.name for file in checkpoint.files]


def save(path: Path, saved: object) -> None:
    torch.save(saved, str(path))
