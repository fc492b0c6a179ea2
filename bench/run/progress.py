"""What a waiting person sees: one line for the phase at work, with the time left."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from bench.progress import is_passing, time_left
from loaders.checkpoint.text import printable

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

EVERY = 15.0
"""Seconds between lines where they can't be overwritten."""


class ProgressLine:
    """Lines through pytest's terminal reporter: overwritten on a terminal, sparse elsewhere."""

    def __init__(self, reporter: TerminalReporter | None) -> None:
        self._reporter = reporter
        self._total = 0
        self._done = 0
        self._began = time.monotonic()
        self._said = 0.0
        self._percent_said = float("-inf")
        self._phase = ""

    def say(self, text: str) -> None:
        """A line of set-up. Where lines can't be overwritten, a percentage only now and then."""
        if self._reporter is None:
            return
        if self._reporter.isatty:
            self._rewrite(text)
        elif not is_passing(text) or time.monotonic() - self._percent_said > EVERY:
            self._write_line(text)
            self._percent_said = time.monotonic()

    def start(self, total: int) -> None:
        """From now on `total` samples are to come."""
        self._total, self._done, self._began = total, 0, time.monotonic()

    def sample(self, phase: str, number: int, passes: int, title: str) -> None:
        """Before a sample: where the run is. Not on a terminal: at a new pass, and now and then."""
        if self._reporter is None:
            return
        spent = time.monotonic() - self._began
        left = ""
        if self._done >= 3:
            left = f", {time_left(spent / self._done * (self._total - self._done))}"
        line = f"pass {number}/{passes}  {self._done}/{self._total}{left}  {phase}: {title}"
        if self._reporter.isatty:
            self._rewrite(line)
        elif f"{number}" != self._phase or spent - self._said > EVERY:
            self._write_line(line)
            self._said, self._phase = spent, f"{number}"
        self._done += 1

    def finish(self) -> None:
        """Wipes the line that could be overwritten."""
        if self._reporter is not None and self._reporter.isatty:
            self._rewrite("")

    def _rewrite(self, text: str) -> None:
        """Over the line that stands there; cut to the terminal, since a line that wraps can't be
        overwritten."""
        assert self._reporter is not None
        width = self._reporter._tw.fullwidth - 1
        text = printable(text)
        text = text if len(text) <= width else f"{text[: max(width - 3, 0)]}..."
        with self._uncaptured():
            self._reporter.rewrite(text, erase=True)
            self._reporter.flush()

    def _write_line(self, text: str) -> None:
        assert self._reporter is not None
        with self._uncaptured():
            self._reporter.write_line(printable(text))
            self._reporter.flush()

    def _uncaptured(self) -> AbstractContextManager[None]:
        """A sample is taken within a test, whose output pytest keeps for the case that it fails."""
        assert self._reporter is not None
        capture = self._reporter.config.pluginmanager.getplugin("capturemanager")
        return nullcontext() if capture is None else capture.global_and_fixture_disabled()
