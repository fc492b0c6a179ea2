"""What a finding of the diagnosis is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was seen (`text`), the numbers of the lines that show it, and what to do next."""

    code: str
    text: str
    evidence: tuple[int, ...]
    next_step: str
