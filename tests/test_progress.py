"""The line that a waiting person sees, on a terminal and elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from bench.progress import percents
from bench.run.progress import ProgressLine


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


def progress(**how: Any) -> tuple[ProgressLine, list[str]]:
    reporter = Reporter(**how)
    return ProgressLine(reporter), reporter.lines  # type: ignore[arg-type]


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
    line = ProgressLine(None)
    line.start(1)
    line.say("x")
    line.sample("ceiling", 1, 1, "x")
    line.finish()


def test_a_percentage_has_the_time_left_once_it_can_be_told() -> None:
    said: list[str] = []
    seconds = iter([0.0, 5.0, 30.0, 66.0])
    told = percents(said.append, "making x", lambda: next(seconds))
    for done in (0, 1, 5, 50, 50, 51, 100):
        told(done * 10, 1000)
    assert said == [
        "making x: 0 %",
        "making x: 1 %",
        "making x: 5 %, 1:35 left",
        "making x: 50 %, 0:30 left",
        "making x: 51 %, 1:03 left",
        "making x: 100 %",
    ]


def test_percentages_are_few_where_lines_can_not_be_overwritten() -> None:
    line, lines = progress(isatty=False)
    told = percents(line.say, "making x")
    for done in range(101):
        told(done, 100)
    line.say("reading")
    assert lines == ["making x: 0 %", "reading"]
