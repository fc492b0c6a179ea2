"""What `--collect-only` and `--plan` print: a line for each case, and what the run would take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench.ground.storages import Place
from bench.record.cases import Case
from bench.run.forecast import case_lines, forecast, lines_of
from bench.settings import Settings
from loaders.checkpoint.text import printable

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter


def tell(
    reporter: TerminalReporter,
    settings: Settings,
    places: Sequence[Place],
    cases: Sequence[Case],
    *,
    everything: bool,
) -> None:
    """`everything`: the cases too. Errors as of `forecast`."""
    reporter.write_line("")
    for line in case_lines(cases, places) if everything else ():
        reporter.write_line(printable(line))
    for line in lines_of(forecast(settings, places, cases), cases, settings.passes):
        reporter.write_line(printable(line))
