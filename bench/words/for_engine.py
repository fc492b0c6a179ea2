"""What to set in the engine for the winners of a run. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from bench.record.summary import Row
from bench.words.engine_settings import NOT_AVAILABLE, engine_setting
from bench.words.phrases import threads

STATES = {"cold": "cold on", "warm": "warm on", "none": "from"}
"""Cache states that a start-up has, and how a sentence names a storage in each."""


MADE_UP = "dummy"
"""Nobody wants to be told to serve random weights."""


def for_the_engine(made: Sequence[Row]) -> list[str]:
    """For each storage and cache state: the engine's setting that loads as the fastest did, or that
    it has no such way; then also the fastest of what it has."""
    said: dict[str, list[str]] = {}
    for label in sorted({row.group.storage for row in made if row.group.storage is not None}):
        for state, words in STATES.items():
            rows = [
                row
                for row in made
                if (row.group.storage, row.group.cache, row.state) == (label, state, state)
                and not row.twin
                and row.loader != MADE_UP
            ]
            for sentence in _best(sorted(rows, key=lambda row: -row.rate.median)):
                said.setdefault(sentence, []).append(f"{words} {label}")
    return [sentence.format(" and ".join(places)) for sentence, places in said.items()]


def _best(ranked: Sequence[Row]) -> list[str]:
    """Sentences with a gap for the place."""
    settings = [(row, setting_of(row)) for row in ranked]
    if not settings:
        return []
    best, setting = settings[0]
    found = [_safe(f"In vLLM, for {_name(best)}, the fastest ") + "{}" + _safe(f": {setting}.")]
    if setting.startswith(NOT_AVAILABLE):
        there = [(row, text) for row, text in settings if not text.startswith(NOT_AVAILABLE)]
        if there:
            row, text = there[0]
            found.append(
                _safe(f"Of what vLLM has, {_name(row)} is the fastest ")
                + "{}"
                + _safe(f": {text}.")
            )
    return found


def _name(row: Row) -> str:
    return f"{row.title}{threads(row.threads)}"


def _safe(text: str) -> str:
    """JSON in it and strangers' names have braces of their own."""
    return text.replace("{", "{{").replace("}", "}}")


def setting_of(row: Row) -> str:
    """The engine's setting for a row, or that there is none, in words."""
    options = {key: value for key, value in row.options.items() if key != "twin"}
    return engine_setting(row.loader, options, row.threads or 1)
