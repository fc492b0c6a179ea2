"""The line that a waiting person sees, on a terminal and elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from bench.run.progress import Progress


class Reporter:
    """As much of pytest's terminal reporter as the progress line uses."""

    def __init__(self, *, isatty: bool, width: int = 80) -> None:
        self.isatty = isatty
        self.lines: list[str] = []
        self._tw = SimpleNamespace(fullwidth=width)
        self.captured = True
        manager = SimpleNamespace(global_and_fixture_disabled=self._uncaptured)
        plugins = SimpleNamespace(getplugin={"capturemanager": manager}.get)
        self.config = SimpleNamespace(pluginmanager=plugins)

    @contextmanager
    def _uncaptured(self) -> Iterator[None]:
        self.captured = False
        yield
        self.captured = True

    def write_line(self, text: str) -> None:
        assert not self.captured, "nobody would see it"
        self.lines.append(text)

    def rewrite(self, text: str, *, erase: bool) -> None:
        assert erase
        assert not self.captured, "nobody would see it"
        self.lines.append(text)

    def flush(self) -> None:
        pass


def progress(**how: Any) -> tuple[Progress, list[str]]:
    reporter = Reporter(**how)
    return Progress(reporter), reporter.lines  # type: ignore[arg-type]


def test_on_a_terminal_each_sample_is_told_with_the_time_left() -> None:
    line, lines = progress(isatty=True)
    line.start(10)
    for _ in range(4):
        line.sample("disk_to_host", 1, 3, "example cold")
    assert lines[0] == "pass 1/3  0/10  disk_to_host: example cold"
    assert lines[3].startswith("pass 1/3  3/10, 0:00 left  disk_to_host: ")


def test_elsewhere_lines_are_few() -> None:
    line, lines = progress(isatty=False)
    line.start(100)
    for number in (1, 2):
        for _ in range(50):
            line.sample("ceiling", number, 2, "x")
    assert len(lines) == 2


@pytest.mark.parametrize("width", [1, 20, 80])
def test_a_line_never_wraps_since_it_could_not_be_overwritten(width: int) -> None:
    line, lines = progress(isatty=True, width=width)
    line.start(1)
    line.say("first look at " + "x" * 200)
    line.sample("disk_to_host", 1, 1, "y" * 200)
    assert all(len(text) < max(width, 4) for text in lines)


@pytest.mark.parametrize("isatty", [True, False])
def test_names_from_strangers_can_not_move_the_cursor(isatty: bool) -> None:
    line, lines = progress(isatty=isatty)
    line.start(1)
    line.say("a\n\x1b[2Jb")
    line.sample("disk_to_host", 1, 1, "c\r\x07d")
    assert len(lines) == 2
    assert all(text.isprintable() for text in lines)


def test_the_last_line_is_wiped() -> None:
    line, lines = progress(isatty=True)
    line.finish()
    assert lines == [""]


def test_without_a_terminal_reporter_nothing_is_said() -> None:
    line = Progress(None)
    line.start(1)
    line.say("x")
    line.sample("ceiling", 1, 1, "x")
    line.finish()
